"""What a plan is worth under other conditions: other costs, more or less traffic, each half."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from ..costs.cost import Floats, StepCosts
from ..plan_file import PlanFile
from ..planner.evaluation import Shapes, real_decode_s
from ..planner.problem import Expectation, Problem, demand_of, expectation
from ..traces.selection import halves, head
from ..traces.trace import Trace, TraceError
from .dispatched import decode_step_s, prefill_step_s
from .values import Case

MAX_REQUESTS = 8000
"""Of other traffic that is simulated, in each of five cases."""

VARIED = (0.8, 1.2)
TERMS = {
    "fixed": "fixed part of a step",
    "rows": "cost of rows",
    "context": "cost of context",
}


@dataclass(frozen=True, slots=True)
class Varied(StepCosts):
    """Costs of which one term is other than thought.

    Attributes:
        known: the costs as they were thought.
        fixed: factor of what a step of one row takes.
        rows: factor of what more rows add.
        context: factor of what cached tokens add.
    """

    known: StepCosts
    fixed: float = 1.0
    rows: float = 1.0
    context: float = 1.0

    @property
    def source(self) -> str:  # type: ignore[override]
        """As of the known costs."""
        return self.known.source

    @property
    def error_share(self) -> float | None:  # type: ignore[override]
        """As of the known costs."""
        return self.known.error_share

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the seconds of prefill steps."""
        bare = self.known.prefill_s(num_tokens)
        return self._sum(
            self.known.prefill_s(1), bare, self.known.prefill_s(num_tokens, prefix_lens)
        )

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that decode steps take in their graphs."""
        bare = self.known.decode_s(num_seqs, np.ones_like(num_seqs))
        return self._sum(
            self.known.decode_s(1, 1), bare, self.known.decode_s(num_seqs, context_lens)
        )

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds of what requests of decode steps have cached."""
        seconds: Floats = self.context * self.known.live_s(num_seqs, context_lens)
        return seconds

    def _sum(self, fixed: Floats, bare: Floats, whole: Floats) -> Floats:
        seconds: Floats = (
            self.fixed * fixed + self.rows * (bare - fixed) + self.context * (whole - bare)
        )
        return seconds


def cost_cases(
    problem: Problem,
    plan: tuple[PlanFile, Expectation],
    default: tuple[PlanFile, Expectation] | None,
) -> Iterator[Case]:
    """Return what the same steps take if one term of the costs is other by a fifth.

    Graphs are chosen as planned: nobody knows yet.
    """
    for term, words in TERMS.items():
        for factor in VARIED:
            costs = Varied(problem.costs, **{term: factor})
            name = f"{words} {100 * (factor - 1):+.0f} %"
            yield _case("costs", name, _paid(costs, *plan), default and _paid(costs, *default))


def traffic_cases(problem: Problem, plan: PlanFile, default: PlanFile | None) -> Iterator[Case]:
    """Return what the plans do with the steps of other traffic, simulated."""
    for name, trace in _traffics(problem.requests):
        other = replace(problem, trace=trace)
        other = replace(other, steps=demand_of(other))
        base = None if default is None else _found(expectation(other, default))
        yield _case("traffic", name, _found(expectation(other, plan)), base)


def _traffics(trace: Trace) -> Iterator[tuple[str, Trace]]:
    first = head(trace, MAX_REQUESTS)
    yield "as it came", first
    if first.arrivals_s is not None:
        for name, factor in (("half the requests a second", 2.0), ("twice the requests", 0.5)):
            yield name, replace(first, arrivals_s=first.arrivals_s * factor)
    try:
        parts = halves(trace)
    except TraceError:
        return
    for name, part in zip(
        ("first half of the trace", "second half of the trace"), parts, strict=True
    ):
        yield name, head(part, MAX_REQUESTS // 2)


@dataclass(frozen=True, slots=True)
class _Times:
    """Seconds of all steps, of graphs of their shapes, and of a decode step on average."""

    seconds: float
    floor_s: float
    decode_step_s: float


def _case(about: str, name: str, plan: _Times, default: _Times | None) -> Case:
    return Case(
        about,
        name,
        plan.seconds,
        plan.floor_s,
        plan.decode_step_s,
        None if default is None else default.seconds,
        None if default is None else default.decode_step_s,
    )


def _found(found: Expectation) -> _Times:
    num_steps = sum(graph.num_steps for graph in found.decode.graphs)
    return _Times(
        found.prefill.seconds + found.decode.seconds,
        found.prefill.floor_s + found.decode.floor_s,
        found.decode.seconds / num_steps if num_steps else 0.0,
    )


def _paid(costs: StepCosts, plan: PlanFile, found: Expectation) -> _Times:
    """Return what a plan's steps take with these costs."""
    prefill, decode = Shapes.of_prefill(found.steps), Shapes.of_decode(found.steps)
    buckets = plan.bucket_plan()
    prompts = prefill.weights @ prefill_step_s(buckets, prefill, costs)
    running = decode.weights @ decode_step_s(buckets, decode, costs)
    floor = prefill.weights @ costs.prefill_s(prefill.sizes, prefill.prefixes)
    floor += decode.weights @ real_decode_s(decode, costs)
    num_steps = decode.weights.sum()
    return _Times(
        float(prompts + running), float(floor), float(running / num_steps) if num_steps else 0.0
    )
