"""From a plan and what it was made from to everything that a report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from typing import TypeVar

from ..costs.numbers import rounded_number
from ..planner.baselines import Baseline
from ..planner.evaluation import Shapes
from ..planner.planner import Planned
from ..planner.problem import Expectation, Problem, expectation
from .facts import (
    bill_facts,
    budget_facts,
    cost_facts,
    graph_facts,
    phases_of,
    prefix_facts,
    proof_facts,
    rules,
    traffic_facts,
    warm_up_facts,
)
from .payers import bands, decode_lots, percentiles, prefill_lots, prompts_alone, waste_points
from .proven import coverage
from .sensitivity import MAX_REQUESTS, cost_cases, traffic_cases
from .values import Case, Report

T = TypeVar("T")


def report_of(
    problem: Problem,
    planned: Planned,
    others: Sequence[Baseline] = (),
    *,
    trace_name: str,
    notes: Sequence[str] = (),
    has_traffic_cases: bool = True,
) -> Report:
    """Return the report of a plan.

    Args:
        problem: that it solves.
        planned: the solution.
        others: rules that it is compared with, for the problem of ``same_steps``; the first is
            the default.
        trace_name: what people call the traffic; no folder.
        notes: sentences about the costs.
        has_traffic_cases: whether to simulate other traffic, some seconds in all.
    """
    default = others[0] if others else None
    base = None if default is None else default.plan
    same = expectation(same_steps(problem, planned), planned.plan)
    shapes = Shapes.of_decode(same.steps)
    requests = decode_lots(shapes, shapes.sizes, problem.costs, planned.plan, base)
    rows = prefill_lots(Shapes.of_prefill(planned.expected.steps), problem.costs, planned.plan)
    prompts = None if problem.trace is None else prompts_alone(problem, planned.plan, base)
    return rounded(
        Report(
            traffic=traffic_facts(problem, planned, trace_name),
            limits=tuple(asdict(problem.limits).items()),
            costs=cost_facts(problem, notes),
            phases=phases_of(planned.expected),
            graphs=tuple(graph_facts(problem, planned)),
            prompt_bands=() if prompts is None else bands(prompts),
            row_bands=bands(rows),
            request_bands=bands(requests),
            context_bands=bands(replace(requests, sizes=shapes.contexts)),
            payers=() if prompts is None else percentiles(prompts),
            wastes=() if prompts is None else waste_points(prompts),
            curve=tuple(bill_facts(bill, problem.budget) for bill in planned.front),
            bill=bill_facts(planned.bill, problem.budget),
            budget=budget_facts(problem.budget),
            warm_up=warm_up_facts(problem, planned),
            coverage=coverage(planned.plan),
            prefixes=tuple(prefix_facts(problem, planned)),
            rules=tuple(rules(problem, planned, same, others)),
            cases=tuple(_cases(problem, planned, same, default, has_traffic_cases)),
            num_case_requests=_num_case_requests(problem),
            proof=proof_facts(problem, planned),
        )
    )


def same_steps(problem: Problem, planned: Planned) -> Problem:
    """Return the problem of the steps that a plan was chosen for, whatever runs them.

    Simulated with each, slower graphs would run more requests at once, and be as busy.
    """
    return replace(problem, steps=planned.demand)


def rounded(value: T) -> T:
    """Return plain data and data classes with numbers that are the same on other machines."""
    result: object = value
    if isinstance(value, float):
        result = rounded_number(value)
    elif isinstance(value, tuple):
        result = tuple(map(rounded, value))
    elif is_dataclass(value) and not isinstance(value, type):
        new = {field.name: rounded(getattr(value, field.name)) for field in fields(value)}
        result = replace(value, **new)
    return result  # type: ignore[return-value]


def _cases(
    problem: Problem,
    planned: Planned,
    same: Expectation,
    default: Baseline | None,
    has_traffic_cases: bool,
) -> Iterator[Case]:
    other = None if default is None else (default.plan, default.expected)
    yield from cost_cases(problem, (planned.plan, same), other)
    if has_traffic_cases and problem.steps is None:
        yield from traffic_cases(problem, planned.plan, None if default is None else default.plan)


def _num_case_requests(problem: Problem) -> int:
    return 0 if problem.trace is None else min(MAX_REQUESTS, len(problem.trace.prompt_lens))
