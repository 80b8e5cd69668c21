"""Cheapest chains of sizes: the dynamic program below sets of sizes for one axis.

A need runs in the next size of the chain, at the seconds t of that size. With F(j) needs of at
most c_j, the cheapest chain that ends with size j costs

    D(j) = F(j) t(j) + fee(j) + min over i < j of (D(i) - F(i) t(j)).

The minimum is one of lines in t(j) whose slopes -F(i) fall with i: their lower envelope is a
stack. So a sweep over n sizes takes O(n log n), in any order of t.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

NO_SIZE = -1
"""Stands before the first size of a chain."""


@dataclass(frozen=True, slots=True)
class ChainRules:
    """Sizes that may follow each other in a chain, and what they cost; n of them.

    Attributes:
        num_needs: needs of at most this size, not falling ``[n]``.
        seconds: of one step of this size ``[n]``.
        fees: of having this size ``[n]``.
        first_before: the smallest index that may stand right before this size, not falling;
            the size's own index where none may ``[n]``.
        last_first: the largest index that may begin a chain.
    """

    num_needs: Sequence[float]
    seconds: Sequence[float]
    fees: Sequence[float]
    first_before: Sequence[int]
    last_first: int

    def cheapest(self, values: Sequence[float] | None = None) -> tuple[list[float], list[int]]:
        """Return what the best chain to each size costs, and the index before it in the chain.

        Args:
            values: what chains cost that may stand before (so the result has one size more);
                None: the result itself, for chains of any length. Infinite: there is no chain.
        """
        num = len(self.seconds)
        found, before = [inf] * num, [NO_SIZE] * num
        sources = found if values is None else values
        start = 0
        while start < num:
            end = self._group_end(start)
            old = self._best_before(start, end, sources)
            self._run_group(old, start, sources, (found, before))
            start = end
        return found, before

    def _group_end(self, start: int) -> int:
        """Return the first size behind ``start`` that ``start`` may not stand before."""
        end = start + 1
        while end < len(self.seconds) and self.first_before[end] <= start:
            end += 1
        return end

    def _best_before(
        self, start: int, end: int, sources: Sequence[float]
    ) -> list[tuple[float, int]]:
        """Return, for each size of a group, the best that stands before it below ``start``.

        From the last size of the group to the first more may stand before, so lines are only
        added. They come by falling slope: the envelope sees its mirror image.
        """
        envelope = _Envelope()
        found = []
        added = start
        for j in range(end - 1, start - 1, -1):
            while added > self.first_before[j]:
                added -= 1
                envelope.add(-self.num_needs[added], sources[added], added)
            found.append(envelope.lowest(-self.seconds[j]))
        return found[::-1]

    def _run_group(
        self,
        old: Sequence[tuple[float, int]],
        start: int,
        sources: Sequence[float],
        results: tuple[list[float], list[int]],
    ) -> None:
        """Fill in the results of a group, given the best from below it."""
        found, before = results
        envelope = _Envelope()
        num_needs, last_first = self.num_needs, self.last_first
        for j, from_below in enumerate(old, start):
            seconds = self.seconds[j]
            best = envelope.lowest(seconds)
            if from_below < best:
                best = from_below
            if best[0] >= 0 and j <= last_first:
                best = (0.0, NO_SIZE)
            found[j] = num_needs[j] * seconds + self.fees[j] + best[0]
            before[j] = best[1]
            envelope.add(num_needs[j], sources[j], j)


class _Envelope:
    """Lower envelope of lines ``value - weight * x``, added by rising weight."""

    __slots__ = ("_lines", "_starts")

    def __init__(self) -> None:
        self._lines: list[tuple[float, float, int]] = []
        self._starts: list[float] = []

    def add(self, weight: float, value: float, index: int) -> None:
        """Add a line; an infinite one is none."""
        if value == inf:
            return
        lines, starts = self._lines, self._starts
        start = -inf
        while lines:
            last_weight, last_value, _ = lines[-1]
            if last_weight != weight:
                start = (value - last_value) / (weight - last_weight)
                if start > starts[-1]:
                    break
            elif last_value <= value:
                return
            lines.pop()
            starts.pop()
            start = -inf
        lines.append((weight, value, index))
        starts.append(start)

    def lowest(self, x: float) -> tuple[float, int]:
        """Return the least value at ``x`` and the index of its line."""
        if not self._lines:
            return inf, NO_SIZE
        weight, value, index = self._lines[bisect_left(self._starts, x) - 1]
        return value - weight * x, index
