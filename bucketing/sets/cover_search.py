"""Sets of sizes for covering: a local search, since no exact method is known.

All sets that differ from one in one size are weighed at once: their shortest paths advance
together, offset by offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from ..costs.cost import StepCosts
from ..costs.reads import Prefix
from ..ladder import require_positive
from .covering import ROUNDING, check_sizes, prefix_read
from .demand import Floats, Ints, PrefillDemand
from .prefill import SizeSet

NUM_COARSE = 32
"""Candidates, on a geometric scale, that every size is tried to be replaced by."""
NEAR = (-8, -4, -3, -2, -1, 1, 2, 3, 4, 8)
"""Places among the candidates by which a size is tried to be moved."""
NUM_STARTS = 1
"""Geometric sets of each number that are searched from, besides the best set of one less."""


def best_covering_sizes(
    demand: PrefillDemand,
    candidates: Ints,
    costs: StepCosts,
    *,
    max_num: int,
    prefix: Prefix,
    context_len: int,
    must_have: Sequence[int] = (),
) -> tuple[SizeSet, ...]:
    """Return a good set for covering of every number of sizes up to ``max_num``.

    None is better after a change of one size to a near candidate or to one of a coarse scale. A
    number that gives nothing better than fewer sizes is left out.

    Args:
        demand: prompts by their length; may be larger than every size.
        candidates: sizes to choose from, ascending. A coarse common unit makes the search fast.
        costs: of a full step of a graph.
        max_num: most sizes, at least as many as must-haves.
        prefix: what the kernel reads of the tokens before a chunk.
        context_len: of the graphs, at least the longest prompt.
        must_have: candidates that are in every set; add the limit if it shall be a graph.

    Same input, same sets.
    """
    check_sizes(candidates.tolist(), int(demand.sizes[-1]), context_len)
    paths = _Paths.of(demand, candidates, costs, prefix=prefix, context_len=context_len)
    search = _Search(paths, _fixed(candidates, must_have, max_num), _coarse(candidates))
    found: list[SizeSet] = []
    best: tuple[int, ...] = ()
    for num in range(max(1, len(search.fixed)), min(max_num, len(candidates)) + 1):
        best, cost = search.best_of(num, best)
        if not found or cost < found[-1].cost * (1 - ROUNDING):
            found.append(SizeSet(tuple(candidates[list(best)].tolist()), cost))
    return tuple(found)


def _fixed(candidates: Ints, must_have: Sequence[int], max_num: int) -> tuple[int, ...]:
    places = {size: place for place, size in enumerate(candidates.tolist())}
    unknown = sorted(set(must_have) - set(places))
    if unknown:
        raise ValueError(f"must_have sizes {unknown} are no candidates")
    if require_positive("max_num", max_num) < len(set(must_have)):
        raise ValueError(f"max_num {max_num} is less than {len(set(must_have))} must_have sizes")
    return tuple(sorted({places[size] for size in must_have}))


def _coarse(candidates: Ints) -> tuple[int, ...]:
    """Return indices of candidates that are spread evenly on a logarithmic scale."""
    points = np.geomspace(candidates[0], candidates[-1], NUM_COARSE)
    nearest = np.abs(candidates[None, :] - points[:, None]).argmin(axis=1)
    return tuple(np.unique(nearest).tolist())


@dataclass(frozen=True, slots=True)
class _Search:
    """Looks for sets; a set is ascending indices of candidates."""

    paths: _Paths
    fixed: tuple[int, ...]
    coarse: tuple[int, ...]

    def best_of(self, num: int, smaller: tuple[int, ...]) -> tuple[tuple[int, ...], float]:
        """Return the best set that is found of ``num`` sizes, given the best of one less."""
        grown = [(*self.fixed, *smaller, extra) for extra in self.coarse]
        starts = self._lowest(grown, num, 1) + self._lowest(self._geometric(num), num, NUM_STARTS)
        ends = [self._descend(*start) for start in starts]
        return min(ends, key=lambda end: (end[1], end[0]), default=(smaller, inf))

    def _descend(self, chosen: tuple[int, ...], cost: float) -> tuple[tuple[int, ...], float]:
        """Make the change of one size that saves most, until none saves anything."""
        while near := self._lowest(self._changes(chosen), len(chosen), 1):
            if near[0][1] >= cost * (1 - ROUNDING):
                break
            chosen, cost = near[0]
        return chosen, cost

    def _geometric(self, num: int) -> list[tuple[int, ...]]:
        """Return the fixed sizes with others, evenly spaced between two of some coarse sizes."""
        free = num - len(self.fixed)
        last = len(self.coarse) - 1
        ends = sorted({*range(0, last, 4), last})
        between = [(a, b) for a in ends for b in ends if a <= b]
        places = [np.linspace(a, b, free).round().astype(int) for a, b in between]
        return [(*self.fixed, *(self.coarse[at] for at in row)) for row in places]

    def _changes(self, chosen: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the sets that differ in one size, which may not be fixed."""
        changes: list[tuple[int, ...]] = []
        for index in set(chosen) - set(self.fixed):
            others = tuple(one for one in chosen if one != index)
            changes += [(*others, one) for one in (*self.coarse, *(index + by for by in NEAR))]
        return changes

    def _lowest(
        self, sets: Sequence[tuple[int, ...]], num: int, num_kept: int
    ) -> list[tuple[tuple[int, ...], float]]:
        """Return the cheapest of those sets that do have ``num`` candidates, with their costs."""
        distinct = {tuple(sorted(set(one))) for one in sets}
        last = len(self.paths.lengths) - 1
        legal = sorted(
            one for one in distinct if len(one) == num and one[0] >= 0 and one[-1] <= last
        )
        if not legal:
            return []
        costs = self.paths.costs(np.array(legal))
        kept = np.argsort(costs, kind="stable")[:num_kept].tolist()
        return [(legal[at], float(costs[at])) for at in kept]


@dataclass(frozen=True, slots=True, eq=False)
class _Paths:
    """Costs of covering the demand; lengths are in units, the common divisor of the candidates.

    Attributes:
        lengths: of the candidates ``[n]``.
        weights: prompts that end in each unit ``[U]``.
        steps: seconds of a chunk of each candidate that starts at each unit; infinite before the
            prompt and behind the longest ``[n, max length + U + max length]``.
    """

    lengths: Ints
    weights: Floats
    steps: Floats

    @classmethod
    def of(
        cls,
        demand: PrefillDemand,
        candidates: Ints,
        costs: StepCosts,
        *,
        prefix: Prefix,
        context_len: int,
    ) -> _Paths:
        """Price every chunk that there may be."""
        unit = int(np.gcd.reduce(candidates))
        ends = -(-demand.sizes // unit)
        weights = np.bincount(ends - 1, weights=demand.weights).astype(np.float64)
        lengths = candidates // unit
        read = prefix_read(np.arange(len(weights)) * unit, prefix=prefix, context_len=context_len)
        seconds = costs.prefill_s(candidates[:, None], read[None, :])
        margin = int(lengths[-1])
        steps = np.pad(seconds, ((0, 0), (margin, margin)), constant_values=inf)
        return cls(lengths, weights, steps)

    def costs(self, sets: Ints) -> Floats:
        """Return what the demand costs with each set of candidate indices ``[S, k]`` -> ``[S]``."""
        num_sets = len(sets)
        margin, num = int(self.lengths[-1]), len(self.weights)
        spent = np.full((margin + num + margin, num_sets), inf)
        spent[margin] = 0.0
        flat_spent, flat_steps = spent.reshape(-1), self.steps.reshape(-1)
        starts = margin - self.lengths[sets.T]
        from_spent = starts * num_sets + np.arange(num_sets)
        from_steps = starts + sets.T * self.steps.shape[1]
        for end in range(1, num + int(self.lengths[sets.max()])):
            found = flat_spent.take(from_spent + end * num_sets)
            found += flat_steps.take(from_steps + end)
            found.min(axis=0, out=spent[margin + end])
        best = np.minimum.accumulate(spent[:margin:-1], axis=0)[::-1]
        total: Floats = self.weights @ best[:num]
        return total
