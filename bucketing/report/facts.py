"""The parts of a report that say what was planned, as the planner found it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf, isfinite
from typing import get_args

from ..costs.fit import FittedCosts
from ..costs.reads import Prefix
from ..planner.baselines import Baseline
from ..planner.budget import Bill, Budget
from ..planner.evaluation import GraphUse, PhaseUse, Shapes
from ..planner.planner import Planned
from ..planner.problem import Expectation, Problem
from .dispatched import prefill_step_s
from .values import (
    PLAN_NAME,
    BillFacts,
    BudgetFacts,
    CostFacts,
    GraphFacts,
    PhaseFacts,
    PrefixFacts,
    Proof,
    Rule,
    TrafficFacts,
    WarmUpFacts,
)


def traffic_facts(problem: Problem, planned: Planned, name: str) -> TrafficFacts:
    """Return what is known of the traffic."""
    steps, trace = planned.expected.steps, problem.trace
    return TrafficFacts(
        name=printable(name),
        sha256="" if trace is None else printable(trace.sha256),
        num_requests=None if trace is None else trace.num_requests,
        window_s=_window_s(planned.expected),
        busy_s=_seconds(planned.expected),
        mean_num_seqs=steps.mean_num_seqs,
        num_preemptions=steps.num_preemptions,
        warnings=() if trace is None else tuple(map(printable, trace.warnings)),
    )


def cost_facts(problem: Problem, notes: Sequence[str]) -> CostFacts:
    """Return where seconds come from."""
    costs = problem.costs
    return CostFacts(
        source=costs.source,
        error_share=costs.error_share,
        left_out_error_share=costs.left_out_error_share if isinstance(costs, FittedCosts) else None,
        prefix=problem.settings.prefix,
        notes=tuple(map(printable, notes)),
    )


def graph_facts(problem: Problem, planned: Planned) -> Iterator[GraphFacts]:
    """Return what each graph does and is worth."""
    expected = planned.expected
    total_s = _seconds(expected)
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
        pays_after_s=(compile_s / problem.budget.workers * window_s / saved_s if saved_s else None),
    )


def _window_s(expected: Expectation) -> float:
    return max(expected.steps.seconds, expected.steps.busy_s or _seconds(expected))


def _seconds(expected: Expectation) -> float:
    return expected.prefill.seconds + expected.decode.seconds


def bill_facts(bill: Bill, budget: Budget) -> BillFacts:
    """Return what a set of graphs costs to have."""
    return BillFacts(
        num_prefill=len(bill.prefill.buckets),
        num_decode=len(bill.decode.buckets),
        compile_s=bill.compile_s,
        wall_s=bill.compile_s / budget.workers,
        num_bytes=bill.num_bytes,
        seconds=bill.seconds,
    )


def budget_facts(budget: Budget) -> BudgetFacts:
    """Return what graphs may cost."""
    wall_s, num_bytes, num_graphs = (
        None if value == inf else value
        for value in (budget.compile_s, budget.num_bytes, budget.max_num_graphs)
    )
    return BudgetFacts(wall_s, budget.workers, num_bytes, num_graphs, budget.horizon_s)


def prefix_facts(problem: Problem, planned: Planned) -> Iterator[PrefixFacts]:
    """Return what the same prefill steps take if kernels pay otherwise for cached tokens."""
    buckets, shapes = planned.plan.bucket_plan(), Shapes.of_prefill(planned.expected.steps)
    floor = float(shapes.weights @ problem.costs.prefill_s(shapes.sizes, shapes.prefixes))
    for prefix in get_args(Prefix):
        paid = float(shapes.weights @ prefill_step_s(buckets, shapes, problem.costs, prefix))
        yield PrefixFacts(prefix, paid, paid / floor - 1 if floor else 0.0)


def rules(
    problem: Problem, planned: Planned, same: Expectation, others: Sequence[Baseline]
) -> Iterator[Rule]:
    """Return the plan and other rules.

    Args:
        problem: that was solved.
        planned: the plan.
        same: what it does with the steps that it was chosen for.
        others: what rules do with the same steps.
    """
    bill, workers = planned.bill, problem.budget.workers
    rows = [(PLAN_NAME, bill.num_graphs, bill.compile_s, bill.num_bytes, same)]
    rows += [(o.name, o.num_graphs, o.compile_s, o.num_bytes, o.expected) for o in others]
    for name, num_graphs, compile_s, num_bytes, expected in rows:
        saved = 1 - _seconds(same) / _seconds(expected)
        phases = phases_of(expected)
        yield Rule(name, num_graphs, compile_s / workers, num_bytes, *phases, saved)


def phases_of(expected: Expectation) -> tuple[PhaseFacts, PhaseFacts]:
    """Return what graphs do in both phases."""
    return _phase("prefill", expected.prefill), _phase("decode", expected.decode)


def warm_up_facts(problem: Problem, planned: Planned) -> tuple[WarmUpFacts, ...]:
    """Return what the traffic takes after each graph, from the second on."""
    workers = problem.budget.workers
    return tuple(
        WarmUpFacts(point.label, point.compile_s / workers, point.seconds)
        for point in planned.order[1:]  # with one limit graph nothing is served
    )


def proof_facts(problem: Problem, planned: Planned) -> Proof:
    """Return how sure it is that there is no better plan."""
    return Proof(
        policy=planned.plan.policy,
        prefill=planned.prefill_proof,
        rules=(planned.bill.prefill.rule, planned.bill.decode.rule),
        weighed=planned.weighed,
        decode_shape=problem.settings.decode_shape,
        knows_decode=bool(planned.demand.decode_shapes),
        decode_gap=planned.decode_gap,
        changed_share=planned.changed_share,
        is_cut_short=planned.is_cut_short,
    )


def printable(text: str) -> str:
    """Return a text in one line, with a question mark for whatever no page can hold."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def _phase(phase: str, use: PhaseUse) -> PhaseFacts:
    return PhaseFacts(
        phase=phase,
        num_graphs=len(use.graphs),
        num_steps=sum(graph.num_steps for graph in use.graphs),
        seconds=use.seconds,
        floor_s=use.floor_s,
        waste=use.waste,
        time_waste=use.time_waste,
    )
