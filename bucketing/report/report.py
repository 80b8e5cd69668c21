"""From a plan and what it was made from to everything that a report shows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from math import inf, isfinite
from typing import TypeVar, get_args

from ..costs.fit import FittedCosts
from ..costs.reads import Prefix
from ..planner.about import DIGITS
from ..planner.baselines import Baseline
from ..planner.budget import Bill, Budget
from ..planner.evaluation import GraphUse, PhaseUse, Shapes
from ..planner.planner import Expectation, Planned, Problem
from .dispatched import prefill_step_s
from .payers import Lots, bands, decode_lots, percentiles, prompts_alone, waste_points
from .proven import coverage
from .sensitivity import MAX_REQUESTS, cost_cases, traffic_cases
from .values import (
    PLAN_NAME,
    BillFacts,
    BudgetFacts,
    Case,
    CostFacts,
    GraphFacts,
    PhaseFacts,
    PrefixFacts,
    Proof,
    Report,
    Rule,
    TrafficFacts,
    WarmUpFacts,
)

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
        others: rules that it is compared with; the first is the default.
        trace_name: what people call the traffic; no folder.
        notes: sentences about the costs.
        has_traffic_cases: whether to simulate other traffic, some seconds for each plan.
    """
    default = others[0] if others else None
    base = None if default is None else default.plan
    prompts = prompts_alone(problem, planned.plan, base)
    steps = planned.expected.steps
    requests, contexts = _decode_lots(problem, planned, default)
    report = Report(
        traffic=_traffic_facts(problem, planned.expected, trace_name),
        limits=tuple(asdict(problem.limits).items()),
        costs=_cost_facts(problem, notes),
        graphs=tuple(_graph_facts(problem, planned)),
        prompt_bands=bands(prompts),
        request_bands=bands(requests),
        context_bands=bands(contexts),
        payers=percentiles(prompts),
        wastes=waste_points(prompts),
        curve=tuple(_bill_facts(bill, problem.budget) for bill in planned.front),
        bill=_bill_facts(planned.bill, problem.budget),
        budget=_budget_facts(problem.budget),
        warm_up=tuple(
            WarmUpFacts(point.label, point.compile_s / problem.budget.workers, point.seconds)
            for point in planned.order[1:]  # with one limit graph nothing is served
        ),
        coverage=coverage(planned.plan),
        prefixes=tuple(_prefix_facts(problem, planned, Shapes.of_prefill(steps))),
        rules=_rules(problem, planned, others),
        cases=tuple(_cases(problem, planned, default, has_traffic_cases)),
        num_case_requests=min(MAX_REQUESTS, len(problem.requests.prompt_lens)),
        proof=Proof(
            policy=planned.plan.policy,
            prefill="exact" if planned.plan.policy == "fill" else "searched",
            decode_shape=problem.settings.decode_shape,
            decode_gap=planned.decode_gap,
            changed_share=planned.changed_share,
        ),
    )
    return rounded(report)


def rounded(value: T) -> T:
    """Return plain data and data classes with numbers that are the same on other machines."""
    result: object = value
    if isinstance(value, float):
        result = float(f"{value:.{DIGITS}g}")
    elif isinstance(value, tuple):
        result = tuple(map(rounded, value))
    elif is_dataclass(value) and not isinstance(value, type):
        new = {field.name: rounded(getattr(value, field.name)) for field in fields(value)}
        result = replace(value, **new)
    return result  # type: ignore[return-value]


def printable(text: str) -> str:
    """Return a text in one line, with a question mark for whatever no page can hold."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _decode_lots(problem: Problem, planned: Planned, default: Baseline | None) -> tuple[Lots, Lots]:
    """Return the decode steps of the plan by their requests, and by their context."""
    shapes = Shapes.of_decode(planned.expected.steps)
    base = None if default is None else default.plan
    by_requests = decode_lots(shapes, shapes.sizes, problem.costs, planned.plan, base)
    return by_requests, replace(by_requests, sizes=shapes.contexts)


def _traffic_facts(problem: Problem, expected: Expectation, name: str) -> TrafficFacts:
    steps = expected.steps
    return TrafficFacts(
        name=printable(name),
        sha256=printable(problem.requests.sha256),
        num_requests=len(problem.requests.prompt_lens),
        window_s=steps.seconds,
        busy_s=steps.busy_s,
        mean_num_seqs=steps.mean_num_seqs,
        num_preemptions=steps.num_preemptions,
        warnings=tuple(map(printable, problem.requests.warnings)),
    )


def _cost_facts(problem: Problem, notes: Sequence[str]) -> CostFacts:
    costs = problem.costs
    return CostFacts(
        source=costs.source,
        unit="rows" if costs.source == "tokens" else "s",
        error_share=costs.error_share,
        left_out_error_share=costs.left_out_error_share if isinstance(costs, FittedCosts) else None,
        prefix=problem.settings.prefix,
        notes=tuple(map(printable, notes)),
    )


def _graph_facts(problem: Problem, planned: Planned) -> Iterator[GraphFacts]:
    expected = planned.expected
    total_s = expected.prefill.seconds + expected.decode.seconds
    for phase in (expected.prefill, expected.decode):
        num_steps = sum(graph.num_steps for graph in phase.graphs)
        for use in phase.graphs:
            fact = _one_graph(problem, use, num_steps, total_s, _window_s(expected))
            # Nothing else can run what the limit graph runs, even where it ran nothing.
            is_limit = use is phase.graphs[-1]
            yield replace(fact, saved_s=None, longer_share=None) if is_limit else fact


def _one_graph(
    problem: Problem, use: GraphUse, num_steps: float, total_s: float, window_s: float
) -> GraphFacts:
    bucket, fees = use.bucket, problem.fees
    saved_s = use.saved_s if isfinite(use.saved_s) else None
    compile_s = fees.compile_s(bucket)
    has_times = problem.costs.source != "tokens"
    return GraphFacts(
        label=bucket.label,
        phase=bucket.phase,
        size=bucket.size,
        context_len=bucket.context_len,
        num_steps=use.num_steps,
        step_share=use.num_steps / num_steps if num_steps else 0.0,
        seconds=use.seconds,
        saved_s=saved_s,
        longer_share=None if saved_s is None else saved_s / total_s,
        compile_s=compile_s,
        num_bytes=fees.num_bytes(bucket),
        pays_after_s=(
            compile_s / problem.budget.workers * window_s / saved_s
            if saved_s and has_times
            else None
        ),
    )


def _window_s(expected: Expectation) -> float:
    return max(expected.steps.seconds, expected.steps.busy_s)


def _bill_facts(bill: Bill, budget: Budget) -> BillFacts:
    return BillFacts(
        num_prefill=len(bill.prefill.buckets),
        num_decode=len(bill.decode.buckets),
        compile_s=bill.compile_s,
        wall_s=bill.compile_s / budget.workers,
        num_bytes=bill.num_bytes,
        seconds=bill.seconds,
    )


def _budget_facts(budget: Budget) -> BudgetFacts:
    wall_s, num_bytes, num_graphs = (
        None if value == inf else value
        for value in (budget.compile_s, budget.num_bytes, budget.max_num_graphs)
    )
    return BudgetFacts(wall_s, budget.workers, num_bytes, num_graphs, budget.horizon_s)


def _prefix_facts(problem: Problem, planned: Planned, shapes: Shapes) -> Iterator[PrefixFacts]:
    """Return what the same prefill steps take if kernels pay otherwise for cached tokens."""
    buckets = planned.plan.bucket_plan()
    floor = float(shapes.weights @ problem.costs.prefill_s(shapes.sizes, shapes.prefixes))
    for prefix in get_args(Prefix):
        paid = float(shapes.weights @ prefill_step_s(buckets, shapes, problem.costs, prefix))
        yield PrefixFacts(prefix, paid, paid / floor - 1 if floor else 0.0)


def _rules(problem: Problem, planned: Planned, others: Sequence[Baseline]) -> tuple[Rule, ...]:
    bill = planned.bill
    rows = [(PLAN_NAME, bill.num_graphs, bill.compile_s, bill.num_bytes, planned.expected)]
    rows += [(o.name, o.num_graphs, o.compile_s, o.num_bytes, o.expected) for o in others]
    plan_s = planned.expected.prefill.seconds + planned.expected.decode.seconds
    found = []
    for name, num_graphs, compile_s, num_bytes, expected in rows:
        seconds = expected.prefill.seconds + expected.decode.seconds
        found.append(
            Rule(
                name=name,
                num_graphs=num_graphs,
                wall_s=compile_s / problem.budget.workers,
                num_bytes=num_bytes,
                prefill=_phase_facts("prefill", expected.prefill),
                decode=_phase_facts("decode", expected.decode),
                saved_share=1 - plan_s / seconds,
            )
        )
    return tuple(found)


def _phase_facts(phase: str, use: PhaseUse) -> PhaseFacts:
    return PhaseFacts(
        phase=phase,
        num_graphs=len(use.graphs),
        num_steps=sum(graph.num_steps for graph in use.graphs),
        seconds=use.seconds,
        floor_s=use.floor_s,
        waste=use.waste,
        time_waste=use.time_waste,
    )


def _cases(
    problem: Problem, planned: Planned, default: Baseline | None, has_traffic_cases: bool
) -> Iterator[Case]:
    other = None if default is None else (default.plan, default.expected)
    yield from cost_cases(problem, (planned.plan, planned.expected), other)
    if has_traffic_cases:
        yield from traffic_cases(problem, planned.plan, None if default is None else default.plan)
