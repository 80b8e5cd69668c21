"""What a plan does with given traffic and what it costs, in one row of numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from types import MappingProxyType
from typing import get_args

import numpy as np

from ..buckets import Bucket
from ..costs.cost import StepCosts
from ..costs.reads import Prefix
from ..plan_file import PlanFile
from ..sets.covering import graph_prefix
from ..sets.demand import Floats
from .baselines import Baseline
from .evaluation import Shapes
from .problem import Expectation, Problem, expectation
from .simulation import Steps


@dataclass(frozen=True, slots=True)
class Outcome:
    """One plan and some traffic.

    Attributes:
        num_graphs: of both phases.
        prefill_waste: padded tokens beside the real ones, as a share of these.
        prefill_time_waste: seconds beside those of a graph for every shape, as a share of these.
        decode_waste: as for prefill.
        decode_time_waste: as for prefill.
        seconds: of all steps.
        wall_s: seconds of compiling all graphs, with all workers.
        num_bytes: of all graphs.
    """

    num_graphs: int
    prefill_waste: float
    prefill_time_waste: float
    decode_waste: float
    decode_time_waste: float
    seconds: float
    wall_s: float
    num_bytes: float


def outcome(problem: Problem, plan: PlanFile) -> Outcome:
    """Return what a plan does with the traffic of a problem, whose limits it has."""
    buckets = buckets_of(plan)
    return _outcome(
        expectation(problem, plan),
        len(buckets),
        sum(map(problem.fees.compile_s, buckets)) / problem.budget.workers,
        sum(map(problem.fees.num_bytes, buckets)),
    )


def baseline_outcome(baseline: Baseline, workers: int) -> Outcome:
    """Return what a spacing rule does."""
    wall_s = baseline.compile_s / workers
    return _outcome(baseline.expected, baseline.num_graphs, wall_s, baseline.num_bytes)


def _outcome(expected: Expectation, num_graphs: int, wall_s: float, num_bytes: float) -> Outcome:
    return Outcome(
        num_graphs=num_graphs,
        prefill_waste=expected.prefill.waste,
        prefill_time_waste=expected.prefill.time_waste,
        decode_waste=expected.decode.waste,
        decode_time_waste=expected.decode.time_waste,
        seconds=expected.prefill.seconds + expected.decode.seconds,
        wall_s=wall_s,
        num_bytes=num_bytes,
    )


def buckets_of(plan: PlanFile) -> tuple[Bucket, ...]:
    """Return all graphs of a plan."""
    return tuple(graph.bucket for graph in (*plan.prefill, *plan.decode))


def prefill_time_wastes(plan: PlanFile, steps: Steps, costs: StepCosts) -> Mapping[Prefix, float]:
    """Return the time waste of prefill steps if their kernels paid each way for the prefix.

    A graph for every shape would pay for what is there, whatever the kernels do.

    Args:
        plan: whose graphs run the steps.
        steps: as they run.
        costs: of steps.
    """
    shapes = Shapes.of_prefill(steps)
    floor = float(costs.prefill_s(shapes.sizes, shapes.prefixes) @ shapes.weights)
    if not floor:
        return MappingProxyType(dict.fromkeys(get_args(Prefix), 0.0))
    return MappingProxyType(
        {
            prefix: float(_seconds(plan, shapes, costs, prefix) @ shapes.weights) / floor - 1
            for prefix in get_args(Prefix)
        }
    )


def _seconds(plan: PlanFile, shapes: Shapes, costs: StepCosts, prefix: Prefix) -> Floats:
    """Return the seconds of each step in the smallest graph that holds it."""
    seconds = np.full(len(shapes.sizes), inf)
    for graph in sorted(plan.prefill, key=lambda one: -one.seconds):
        rows, context = graph.bucket.size, graph.bucket.context_len
        fits = (shapes.sizes <= rows) & (shapes.contexts <= context)
        held = np.minimum(shapes.prefixes, context)  # in graphs that hold the step it is less
        read = graph_prefix(held, rows, context, prefix)
        seconds = np.where(fits, costs.prefill_s(rows, read), seconds)
    return seconds
