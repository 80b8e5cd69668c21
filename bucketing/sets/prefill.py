"""The best sizes for steps that each run alone in one graph: exact for every number of them.

A step is charged the smallest size that holds it. Where seconds fall with size this loses nothing:
a size that is slower than a larger one of its set is never chosen, unless it is a must-have or the
ratio needs it. Then an engine that takes the fastest does better than said here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..ladder import require_positive
from .chain import NO_SIZE, ChainRules
from .demand import Floats, Ints, PrefillDemand

ROUNDING = 1e-12
"""Relative gain below which more sizes are taken to be no better: less than sums can resolve."""


@dataclass(frozen=True, slots=True)
class SizeSet:
    """Sizes of graphs and what they cost.

    Attributes:
        sizes: rows, strictly increasing; the last is the limit.
        cost: seconds of all steps of the demand.
        fees: of having the graphs, in seconds too.
    """

    sizes: tuple[int, ...]
    cost: float
    fees: float = 0.0

    @property
    def total(self) -> float:
        """What is minimised: cost and fees."""
        return self.cost + self.fees


def candidate_sizes(limit: int, granularity: int, must_have: Sequence[int] = ()) -> Ints:
    """Return the multiples of ``granularity`` below the limit, the must-haves and the limit.

    >>> candidate_sizes(500, 128, must_have=[200]).tolist()
    [128, 200, 256, 384, 500]
    """
    require_positive("limit", limit)
    multiples = range(require_positive("granularity", granularity), limit, granularity)
    return np.array(sorted({*multiples, *must_have, limit}), dtype=np.int64)


def padded_cost(demand: PrefillDemand, sizes: ArrayLike, seconds: ArrayLike) -> float:
    """Return the seconds of all steps, each in the smallest of the sizes that holds it.

    >>> padded_cost(PrefillDemand.of([100, 130, 200]), [128, 256], [1.0, 2.0])
    5.0
    """
    num_needs = _num_needs(demand, np.asarray(sizes, dtype=np.int64))
    steps = np.diff(num_needs, prepend=0.0)
    return float(steps @ np.asarray(seconds, dtype=np.float64))


def best_sizes(
    demand: PrefillDemand,
    candidates: Ints,
    seconds: Floats,
    *,
    max_num: int,
    must_have: Sequence[int] = (),
    max_ratio: float | None = None,
    fees: Floats | None = None,
) -> tuple[SizeSet, ...]:
    """Return the cheapest set of every number of sizes up to ``max_num``, exactly.

    A number whose best set is no cheaper than that of fewer sizes, or that the rules do not
    allow, is left out: take ``at_most(sets, k)``.

    Args:
        demand: steps; none may be larger than the last candidate.
        candidates: sizes to choose from, ascending ``[n]``. The last is the limit, always in.
        seconds: of a step of each, in any order ``[n]``.
        max_num: most sizes, the limit and the must-haves included.
        must_have: candidates that are in every set.
        max_ratio: of neighbours in a set that have candidates between them, so that no step above
            the smallest size is padded to more than this multiple, as far as candidates allow.
            Nothing is asked of the smallest size, so a further size may then save more than the
            one before it.
        fees: in seconds, of having each, not negative ``[n]``; None is none.

    Raises:
        ValueError: input that is not as said, or rules that take more than ``max_num`` sizes.

    >>> demand = PrefillDemand.of([100, 120, 700, 1000])
    >>> sizes = candidate_sizes(1024, 128)
    >>> [found.sizes for found in best_sizes(demand, sizes, sizes * 1.0, max_num=3)]
    [(1024,), (128, 1024), (128, 768, 1024)]
    """
    require_positive("max_num", max_num)
    choice = _Choice.of(demand, candidates, seconds, fees, must_have, max_ratio)
    found: list[SizeSet] = []
    values = [inf] * len(candidates)
    layers: list[list[int]] = []
    for _ in range(min(max_num, len(candidates))):
        values, before = choice.rules.cheapest(values)
        layers.append(before)
        if values[-1] < (found[-1].total * (1 - ROUNDING) if found else inf):
            found.append(choice.set_of(_walk(layers)))
    if not found:
        raise ValueError(choice.why_none(max_num))
    return tuple(found)


def best_with_fees(
    demand: PrefillDemand,
    candidates: Ints,
    seconds: Floats,
    fees: Floats,
    *,
    must_have: Sequence[int] = (),
    max_ratio: float | None = None,
) -> SizeSet:
    """Return the set with the least cost and fees of all sets, of any number, exactly.

    The arguments and errors are those of ``best_sizes``.

    >>> demand = PrefillDemand.of([100, 1000], weights=[50, 50])
    >>> sizes = candidate_sizes(1024, 128)
    >>> best_with_fees(demand, sizes, sizes / 1000, fees=np.full(8, 10.0)).sizes
    (128, 1024)
    >>> best_with_fees(demand, sizes, sizes / 1000, fees=np.full(8, 60.0)).sizes
    (1024,)
    """
    choice = _Choice.of(demand, candidates, seconds, fees, must_have, max_ratio)
    _, before = choice.rules.cheapest()
    return choice.set_of(_walk([before] * len(before)))


def fewest_sizes(candidates: Ints, max_ratio: float) -> int:
    """Return how many sizes it takes to keep a ratio from the smallest candidate to the limit.

    >>> fewest_sizes(np.array([1, 2, 3, 4, 8]), 2.0), fewest_sizes(np.array([1, 2, 3, 4, 8]), 1.5)
    (4, 5)
    """
    place, num, last = 0, 1, len(candidates) - 1
    farthest = np.searchsorted(candidates, candidates * max_ratio, side="right") - 1
    while place < last:
        place = max(place + 1, int(farthest[place]))
        num += 1
    return num


def least_ratio(candidates: Ints, max_num: int) -> float:
    """Return the smallest ratio, in hundredths, that ``max_num`` sizes keep, at least 2.

    >>> least_ratio(np.array([1, 2, 3, 4, 8]), 4)
    2.0
    """
    hundredths = range(101, 100 * int(candidates[-1]) // int(candidates[0]) + 101)
    at = bisect_left(
        hundredths, True, key=lambda one: fewest_sizes(candidates, one / 100) <= max_num
    )
    return hundredths[at] / 100


def at_most(sets: Sequence[SizeSet], max_num: int) -> SizeSet:
    """Return the last of sets by rising number that has at most ``max_num`` sizes.

    >>> at_most([SizeSet((8,), 5.0), SizeSet((4, 8), 3.0)], 7).sizes
    (4, 8)
    """
    fitting = [one for one in sets if len(one.sizes) <= max_num]
    if not fitting:
        raise ValueError(f"no set has at most {max_num} sizes, the least is {len(sets[0].sizes)}")
    return fitting[-1]


def _walk(layers: Sequence[list[int]]) -> list[int]:
    """Return the indices of a chain from the limit down, through the layers from the last."""
    index = len(layers[-1]) - 1
    chain = [index]
    for before in reversed(layers):
        index = before[index]
        if index == NO_SIZE:
            break
        chain.append(index)
    return chain[::-1]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A checked problem: the candidates and the rules of their chains."""

    candidates: list[int]
    rules: ChainRules
    constraint: str

    @classmethod
    def of(
        cls,
        demand: PrefillDemand,
        candidates: Ints,
        seconds: Floats,
        fees: Floats | None,
        must_have: Sequence[int],
        max_ratio: float | None,
    ) -> _Choice:
        """Check all of it, and drop the candidates that no cheapest set needs."""
        fees = np.zeros(len(candidates)) if fees is None else fees
        _check(candidates, seconds, fees)
        num_needs = _num_needs(demand, candidates)
        if max_ratio is None:
            kept = _is_useful(num_needs, seconds, fees) | np.isin(candidates, must_have)
            kept[-1] = True
            candidates, num_needs = candidates[kept], num_needs[kept]
            seconds, fees = seconds[kept], fees[kept]
        needed = _indices(candidates, must_have)
        rules = ChainRules(
            num_needs=num_needs.tolist(),
            seconds=seconds.tolist(),
            fees=fees.tolist(),
            first_before=_first_before(candidates, needed, max_ratio),
            last_first=int(needed[0]) if len(needed) else len(candidates) - 1,
        )
        constraint = f"must_have {sorted(must_have)} with max_ratio {max_ratio}"
        return cls(candidates.tolist(), rules, constraint)

    def set_of(self, chain: Sequence[int]) -> SizeSet:
        """Return a chain as a set."""
        rules = self.rules
        steps = [rules.num_needs[chain[0]]]
        steps += [rules.num_needs[j] - rules.num_needs[i] for i, j in pairwise(chain)]
        cost = sum(num * rules.seconds[j] for num, j in zip(steps, chain, strict=True))
        fees = sum(rules.fees[j] for j in chain)
        return SizeSet(tuple(self.candidates[j] for j in chain), cost, fees)

    def why_none(self, max_num: int) -> str:
        """Return why no set of at most ``max_num`` sizes follows the rules."""
        num = len(self.candidates)
        zero = [0.0] * num
        rules = self.rules
        counting = ChainRules(zero, zero, [1.0] * num, rules.first_before, rules.last_first)
        fewest = counting.cheapest()[0][-1]
        return f"{self.constraint} takes at least {fewest:.0f} sizes, max_num is {max_num}"


def _check(candidates: Ints, seconds: Floats, fees: Floats) -> None:
    """Refuse candidates and prices that a set cannot be chosen from."""
    if not len(candidates) or candidates[0] < 1 or not (np.diff(candidates) > 0).all():
        raise ValueError("candidates must be positive and strictly increasing")
    for name, values in (("seconds", seconds), ("fees", fees)):
        if values.shape != candidates.shape or not (np.isfinite(values) & (values >= 0)).all():
            raise ValueError(f"{name} must be finite, not negative, and one per candidate")


def _num_needs(demand: PrefillDemand, sizes: Ints) -> Floats:
    """Return how many steps each size and those below it hold."""
    if len(demand.sizes) and demand.sizes[-1] > sizes[-1]:
        raise ValueError(f"a step of {demand.sizes[-1]} rows is above the limit {sizes[-1]}")
    summed = np.concatenate([[0.0], np.cumsum(demand.weights)])
    found: Floats = summed[np.searchsorted(demand.sizes, sizes, side="right")]
    return found


def _indices(candidates: Ints, must_have: Sequence[int]) -> Ints:
    """Return where the must-haves are."""
    unknown = sorted(set(must_have) - set(candidates.tolist()))
    if unknown:
        raise ValueError(f"must_have sizes {unknown} are no candidates")
    return np.searchsorted(candidates, np.unique(np.asarray(must_have, dtype=np.int64)))


def _first_before(candidates: Ints, needed: Ints, max_ratio: float | None) -> list[int]:
    """Return the first index that may stand before each: near enough, no must-have between."""
    index = np.arange(len(candidates))
    behind = np.searchsorted(needed, index)
    first = np.where(behind > 0, np.append(needed, 0)[behind - 1], 0)
    if max_ratio is not None:
        if not max_ratio > 1:
            raise ValueError(f"max_ratio must be above 1, got {max_ratio}")
        near = np.searchsorted(candidates * max_ratio, candidates)
        first = np.maximum(first, np.minimum(near, np.maximum(index - 1, 0)))
    return [int(one) for one in first]


def _is_useful(num_needs: Floats, seconds: Floats, fees: Floats) -> NDArray[np.bool_]:
    """Return which sizes hold a step that the one below does not, or are cheaper than it."""
    news = np.diff(num_needs, prepend=0.0) > 0
    faster = np.diff(seconds, prepend=0.0) < 0
    return news | faster | (np.diff(fees, prepend=0.0) < 0)
