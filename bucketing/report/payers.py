"""Who pays for padding: prompts and steps by size, requests by what they waste."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..costs.cost import StepCosts
from ..plan_file import PlanFile
from ..planner.evaluation import Shapes, real_decode_s
from ..planner.problem import Problem
from ..sets.demand import Floats, Ints
from .bands import Band, Percentile, WastePoint
from .dispatched import decode_step_s, own_prompt_s, prefill_step_s, prompt_s

PERCENTS = (10, 25, 50, 75, 90, 95, 99, 100)
MAX_BANDS = 9


@dataclass(frozen=True, slots=True, eq=False)
class Lots:
    """Things of some sizes and the seconds that each takes.

    Attributes:
        sizes: of them ``[n]``.
        weights: how many there are ``[n]``.
        own_s: in graphs of exactly their shapes ``[n]``.
        plan_s: in those of the plan ``[n]``.
        default_s: in those of the default ``[n]``; None without one.
    """

    sizes: Ints
    weights: Floats
    own_s: Floats
    plan_s: Floats
    default_s: Floats | None


def prompts_alone(problem: Problem, plan: PlanFile, default: PlanFile | None) -> Lots:
    """Return the prompts of the traffic, each as if it ran alone."""
    trace = problem.requests
    sizes, index = np.unique(trace.prompt_lens, return_inverse=True)
    weights = np.bincount(index.reshape(-1), weights=trace.weights)
    costs, prefix, limits = problem.costs, problem.settings.prefix, problem.limits
    room = (limits.max_prefill_tokens, limits.max_model_len)
    return Lots(
        sizes=sizes,
        weights=weights.astype(np.float64),
        own_s=own_prompt_s(costs, prefix, sizes, room),
        plan_s=prompt_s(plan, costs, prefix, sizes),
        default_s=None if default is None else prompt_s(default, costs, prefix, sizes),
    )


def decode_lots(
    shapes: Shapes, sizes: Ints, costs: StepCosts, plan: PlanFile, default: PlanFile | None
) -> Lots:
    """Return decode steps by any size of theirs ``[m]``; they are the same in both plans."""
    paid = [
        None if one is None else decode_step_s(one.bucket_plan(), shapes, costs)
        for one in (plan, default)
    ]
    assert paid[0] is not None
    own = real_decode_s(shapes, costs)
    return Lots(sizes, shapes.weights, own, paid[0], paid[1])


def prefill_lots(shapes: Shapes, costs: StepCosts, plan: PlanFile) -> Lots:
    """Return the prefill steps of a plan by their rows, which other plans cut otherwise."""
    paid = prefill_step_s(plan.bucket_plan(), shapes, costs)
    own = costs.prefill_s(shapes.sizes, shapes.prefixes)
    return Lots(shapes.sizes, shapes.weights, own, paid, None)


def bands(lots: Lots) -> tuple[Band, ...]:
    """Return sums by size: up to a power of two each, the smallest sizes together.

    Bands that hold nothing are left out.
    """
    if not len(lots.sizes):
        return ()
    top = int(lots.sizes.max() - 1).bit_length()
    ends = [1 << power for power in range(max(0, top - MAX_BANDS + 1), top + 1)]
    found = []
    for first, last in zip([1, *(end + 1 for end in ends)], ends, strict=False):
        rows = np.flatnonzero((first <= lots.sizes) & (lots.sizes <= last))
        if len(rows):
            found.append(_band(lots, rows, first, last))
    return tuple(found)


def percentiles(lots: Lots) -> tuple[Percentile, ...]:
    """Return prompts by length: the shortest that so many percent are not longer than."""
    order = np.argsort(lots.sizes)
    return tuple(
        Percentile(
            percent,
            int(lots.sizes[at]),
            float(lots.own_s[at]),
            float(lots.plan_s[at]),
            None if lots.default_s is None else float(lots.default_s[at]),
        )
        for percent, at in zip(PERCENTS, _ranked(order, lots.weights, PERCENTS), strict=True)
    )


def waste_points(lots: Lots) -> tuple[WastePoint, ...]:
    """Return what the requests waste, for every percent of them, those that waste least first."""
    percents = range(1, 101)
    plan = _ascending(lots.plan_s / lots.own_s - 1, lots.weights, percents)
    default: Sequence[float | None] = [None] * 100
    if lots.default_s is not None:
        default = _ascending(lots.default_s / lots.own_s - 1, lots.weights, percents)
    return tuple(map(WastePoint, percents, plan, default))


def _ascending(values: Floats, weights: Floats, percents: Sequence[int]) -> list[float]:
    order = np.argsort(values, kind="stable")
    return [float(values[at]) for at in _ranked(order, weights, percents)]


def _ranked(order: Ints, weights: Floats, percents: Sequence[int]) -> list[int]:
    """Return, in this order, the first that so many percent of the weight are not behind."""
    below = np.cumsum(weights[order])
    wanted = np.array(percents) / 100 * below[-1]
    # A sum of weights must not miss its own percent by a rounding.
    places = np.searchsorted(below, wanted * (1 - 1e-12))
    return [int(at) for at in order[np.minimum(places, len(order) - 1)]]


def _band(lots: Lots, rows: Ints, first: int, last: int) -> Band:
    weights = lots.weights[rows]
    return Band(
        first,
        last,
        float(weights.sum()),
        float(weights @ lots.own_s[rows]),
        float(weights @ lots.plan_s[rows]),
        None if lots.default_s is None else float(weights @ lots.default_s[rows]),
    )
