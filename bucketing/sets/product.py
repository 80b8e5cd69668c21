"""Products: all pairs of a list of num_seqs and a list of contexts.

With one list given the other is a 1-D problem, solved exactly for every length at once. Where one
axis has few lists all of them are tried; otherwise the two lists are improved in turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, islice
from math import comb

import numpy as np

from .demand import Floats, Ints
from .grid import Bools, DecodeGrid

MAX_LISTS = 1 << 13
MAX_SEGMENTS = 1 << 22
"""Entries of the tables that are held at once."""


@dataclass(frozen=True, slots=True, eq=False)
class ProductSet:
    """The graphs of a product, and whether no other of at most as many graphs is cheaper."""

    total: float
    graphs: Ints
    is_optimal: bool


@dataclass(frozen=True, slots=True, eq=False)
class _Axes:
    """The problem as one axis whose lists are given (lines) and one to solve (places).

    Attributes:
        below: steps up to each line and each place; row and column 0 are empty ``[L + 1, P + 1]``.
        seconds: of a step ``[L, P]``.
        fees: of each graph ``[L, P]``.
        lines: those that every list has ``[L]``.
        places: likewise ``[P]``.
    """

    below: Floats
    seconds: Floats
    fees: Floats
    lines: Bools
    places: Bools

    @classmethod
    def of(cls, grid: DecodeGrid) -> _Axes:
        """Take num_seqs as lines."""
        below = np.zeros((len(grid.num_seqs) + 1, len(grid.contexts) + 1))
        below[1:, 1:] = grid.weights.cumsum(axis=0).cumsum(axis=1)
        lines: Bools = np.asarray(grid.required.any(axis=1))
        places: Bools = np.asarray(grid.required.any(axis=0))
        return cls(below, grid.seconds, grid.fees, lines, places)

    @property
    def turned(self) -> _Axes:
        """The same problem with the other axis as lines."""
        return _Axes(self.below.T, self.seconds.T, self.fees.T, self.places, self.lines)

    def num_lists(self, max_num: int) -> int:
        """How many lists of lines there are with at most ``max_num``."""
        fixed, free = int(self.lines.sum()), int((~self.lines).sum())
        return sum(comb(free, num) for num in range(max_num - fixed + 1))

    def lists(self, num: int) -> Iterator[tuple[int, ...]]:
        """Yield all lists of ``num`` lines that have what they must have."""
        fixed, free = np.nonzero(self.lines)[0].tolist(), np.nonzero(~self.lines)[0].tolist()
        if num >= len(fixed):
            for more in combinations(free, num - len(fixed)):
                yield tuple(sorted([*fixed, *more]))


@dataclass(frozen=True, slots=True)
class _Pair:
    total: float
    lines: tuple[int, ...]
    places: tuple[int, ...]

    @property
    def num_graphs(self) -> int:
        return len(self.lines) * len(self.places)


def product_sets(grid: DecodeGrid, max_num: int) -> tuple[ProductSet, ...]:
    """Return the best product of at most k graphs for each k up to ``max_num`` that allows one.

    Raises:
        ValueError: what must be there needs more graphs.
    """
    by_rows = _Axes.of(grid)
    by_contexts = by_rows.turned
    turns = by_contexts.num_lists(max_num) < by_rows.num_lists(max_num)
    axes = by_contexts if turns else by_rows
    is_exact = axes.num_lists(max_num) <= MAX_LISTS
    pairs = _all_pairs(axes, max_num) if is_exact else _improved_pairs(axes, max_num)
    # A step goes to the smallest graph here, which is the cheapest only if seconds grow.
    is_optimal = is_exact and bool(
        (np.diff(grid.seconds, axis=0) >= 0).all() and (np.diff(grid.seconds, axis=1) >= 0).all()
    )
    best = _best_by_size(pairs, max_num)
    return tuple(
        ProductSet(pair.total, _graphs(pair, len(grid.contexts), turns), is_optimal)
        for pair in best
    )


def _graphs(pair: _Pair, num_contexts: int, turns: bool) -> Ints:
    rows, columns = (pair.places, pair.lines) if turns else (pair.lines, pair.places)
    graphs: Ints = np.array(rows, np.int64)[:, None] * num_contexts + np.array(columns, np.int64)
    return graphs.reshape(-1)


def _best_by_size(pairs: list[_Pair], max_num: int) -> list[_Pair]:
    best: list[_Pair] = []
    for num in range(1, max_num + 1):
        allowed = [pair for pair in pairs if pair.num_graphs <= num]
        if allowed:
            best.append(min(allowed, key=lambda pair: (pair.total, pair.num_graphs)))
    if not best:
        raise ValueError(f"a product with the graphs that must be there needs more than {max_num}")
    return best


def _all_pairs(axes: _Axes, max_num: int) -> list[_Pair]:
    pairs = []
    for num in range(1, min(max_num, len(axes.lines)) + 1):
        lists = axes.lists(num)
        size = max(1, MAX_SEGMENTS // axes.below.shape[1] ** 2)
        while chunk := list(islice(lists, size)):
            pairs += _best_places(axes, np.array(chunk), max_num // num)
    return pairs


def _improved_pairs(axes: _Axes, max_num: int) -> list[_Pair]:
    """Improve in turns: each round solves one axis exactly for the other's list."""
    starts = [np.nonzero(axes.places)[0][None], np.arange(len(axes.places))[None]]
    pairs = []
    for start in starts:
        for pair in _best_places(axes.turned, start, max_num):
            pairs += _climb(axes, pair.places, max_num)
    return pairs


def _climb(axes: _Axes, lines: tuple[int, ...], max_num: int) -> list[_Pair]:
    """Return the pairs of a list of lines, each improved as long as that helps."""
    pairs = []
    for pair in _best_places(axes, np.array([lines]), max_num // len(lines)):
        while True:
            turned = _best_places(axes.turned, np.array([pair.places]), len(pair.lines))[-1]
            again = _best_places(axes, np.array([turned.places]), len(pair.places))[-1]
            if again.total >= pair.total:
                break
            pair = again
        pairs.append(pair)
    return pairs


def _best_places(axes: _Axes, lists: Ints, max_num: int) -> list[_Pair]:
    """Return the best pair for each number of places, over ``lists`` of lines ``[n, lines]``."""
    segments = _segments(axes, lists)
    num_lists, num_columns, _ = segments.shape
    reached = np.full((num_lists, num_columns), np.inf)
    reached[:, 0] = 0.0
    previous: list[Ints] = []
    pairs = []
    for _ in range(min(max_num, num_columns - 1)):
        through = reached[:, None, :] + segments
        previous.append(through.argmin(axis=2))
        reached = np.take_along_axis(through, previous[-1][:, :, None], axis=2)[:, :, 0]
        best = int(reached[:, -1].argmin())
        if np.isfinite(reached[best, -1]):
            places = _walked_back([column[best] for column in previous])
            pairs.append(_Pair(float(reached[best, -1]), tuple(lists[best].tolist()), places))
    return pairs


def _walked_back(previous: list[Ints]) -> tuple[int, ...]:
    column, found = len(previous[0]) - 1, []
    for before in reversed(previous):
        found.append(column - 1)
        column = int(before[column])
    return tuple(reversed(found))


def _segments(axes: _Axes, lists: Ints) -> Floats:
    """Return the cost of a place after a previous one, for all lines ``[n, P + 1, P + 1]``."""
    smaller = np.concatenate([np.zeros_like(lists[:, :1]), lists[:, :-1] + 1], axis=1)
    below = axes.below[lists + 1] - axes.below[smaller]
    seconds = np.pad(axes.seconds[lists], ((0, 0), (0, 0), (1, 0)))
    fees = np.pad(axes.fees[lists].sum(axis=1), ((0, 0), (1, 0)))
    all_below = np.einsum("nlp,nlp->np", below, seconds) + fees
    segments: Floats = all_below[:, :, None] - np.einsum("nlp,nlq->npq", seconds, below)
    column = np.arange(segments.shape[1])
    num_required = np.concatenate([[0], np.cumsum(axes.places)])
    skips = num_required[np.maximum(column - 1, 0), None] > num_required
    segments[:, (column >= column[:, None]) | skips] = np.inf
    return segments
