"""Ragged rows: every num_seqs with a list of contexts of its own, exact for every k.

A step is sent to the smallest row that holds its requests, there to the shortest context that
is enough, and to the limit graph where the row has none. Every set of graphs with the limit in it
is such a set of rows, and sending each step to the cheapest graph that fits costs at most as much.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .demand import Floats, Ints
from .grid import DecodeGrid


@dataclass(frozen=True, slots=True, eq=False)
class RaggedSet:
    """The best set of its size. ``total`` is what it costs by rows, fees included."""

    total: float
    graphs: Ints


def ragged_sets(grid: DecodeGrid, max_num: int) -> tuple[RaggedSet, ...]:
    """Return the best set of each size up to ``max_num``, as far as there are such sets."""
    rows = [_solve_row(grid, row, max_num) for row in range(len(grid.num_seqs))]
    chain = _Chain.of(grid, rows, max_num)
    found = [num for num in range(1, max_num + 1) if np.isfinite(chain.totals[-1, num])]
    return tuple(
        RaggedSet(float(chain.totals[-1, num]), _graphs(grid, rows, chain, num)) for num in found
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Row:
    """The best lists of contexts of one row, for each row that may be the next smaller one.

    ``lower`` counts the rows up to the next smaller one (0: there is none): steps of the rows in
    between come here. Column 0 stands for no context yet, column c + 1 for context c.

    Attributes:
        totals: of the best list of exactly ``num`` contexts ``[num, lower]``.
        ends: its last column ``[num, lower]``.
        previous: column before each in the best list that ends there ``[num, lower, C + 1]``.
    """

    totals: Floats
    ends: Ints
    previous: Ints

    def columns(self, num: int, lower: int) -> list[int]:
        """Return the contexts of the best list."""
        column = int(self.ends[num, lower])
        found = []
        for left in range(num, 0, -1):
            found.append(column - 1)
            column = int(self.previous[left, lower, column])
        return found


def _solve_row(grid: DecodeGrid, row: int, max_num: int) -> _Row:
    """Solve the 1-D problem of a row for every k and every next smaller row.

    A minimum over all pairs of contexts at once: numpy does that faster than Python walks a convex
    hull as long as there are some hundred contexts, and seconds need not grow with the context.
    """
    segments, rest = _segments(grid, row), _rest(grid, row)
    num_lower, num_columns = rest.shape
    totals = np.full((max_num + 1, num_lower), np.inf)
    ends = np.zeros((max_num + 1, num_lower), dtype=np.int64)
    previous = np.zeros((max_num + 1, num_lower, num_columns), dtype=np.int64)
    reached = np.full((num_lower, num_columns), np.inf)
    reached[:, 0] = 0.0
    for num in range(1, min(max_num, num_columns - 1) + 1):
        through = reached[:, None, :] + segments
        previous[num] = through.argmin(axis=2)
        reached = np.take_along_axis(through, previous[num][:, :, None], axis=2)[:, :, 0]
        ends[num] = (reached + rest).argmin(axis=1)
        totals[num] = np.take_along_axis(reached + rest, ends[num][:, None], axis=1)[:, 0]
    return _Row(totals, ends, previous)


def _below(grid: DecodeGrid, row: int) -> Floats:
    """Return the steps that come to a row, up to each column ``[lower, C + 1]``."""
    from_here_down = np.cumsum(grid.weights[row::-1], axis=0)[::-1]
    below = np.zeros((row + 1, len(grid.contexts) + 1))
    np.cumsum(from_here_down, axis=1, out=below[:, 1:])
    return below


def _segments(grid: DecodeGrid, row: int) -> Floats:
    """Return the cost of a context after a previous one, inf if none ``[lower, C + 1, C + 1]``."""
    below = _below(grid, row)
    seconds = np.concatenate([[0.0], grid.seconds[row]])
    fees = np.concatenate([[0.0], grid.fees[row]])
    segments: Floats = (below[:, :, None] - below[:, None, :]) * seconds[:, None] + fees[:, None]
    column = np.arange(len(seconds))
    num_required = np.concatenate([[0], np.cumsum(grid.required[row])])
    skips = num_required[np.maximum(column - 1, 0), None] > num_required
    segments[:, (column[None, :] >= column[:, None]) | skips] = np.inf
    return segments


def _rest(grid: DecodeGrid, row: int) -> Floats:
    """Return what steps beyond a last context cost, inf if that cannot be ``[lower, C + 1]``."""
    below = _below(grid, row)
    rest: Floats = (below[:, -1:] - below) * grid.seconds[-1, -1]
    rest[:, :-1][:, np.cumsum(grid.required[row, ::-1])[::-1] > 0] = np.inf
    return rest


@dataclass(frozen=True, slots=True, eq=False)
class _Chain:
    """The best chains of rows. Row 0 stands for no row yet, row b + 1 for num_seqs b.

    Attributes:
        totals: of the best chain that ends in a row with so many graphs in all ``[B + 1, num]``.
        lower: its next smaller row ``[B + 1, num]``.
        here: how many of its graphs are in the last row ``[B + 1, num]``.
    """

    totals: Floats
    lower: Ints
    here: Ints

    @classmethod
    def of(cls, grid: DecodeGrid, rows: list[_Row], max_num: int) -> _Chain:
        """Extend all chains row by row."""
        shape = (len(rows) + 1, max_num + 1)
        chain = cls(np.full(shape, np.inf), np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        chain.totals[0, 0] = 0.0
        needed = np.nonzero(grid.required.any(axis=1))[0] + 1
        for row in range(1, len(rows) + 1):
            first = max(needed[needed < row], default=0)
            for lower in range(first, row):
                chain._extend(row, lower, rows[row - 1].totals[:, lower])
        return chain

    def _extend(self, row: int, lower: int, row_totals: Floats) -> None:
        max_num = len(row_totals) - 1
        for here in range(1, max_num + 1):
            totals = self.totals[lower, : max_num + 1 - here] + row_totals[here]
            better = np.nonzero(totals < self.totals[row, here:])[0]
            self.totals[row, here + better] = totals[better]
            self.lower[row, here + better] = lower
            self.here[row, here + better] = here


def _graphs(grid: DecodeGrid, rows: list[_Row], chain: _Chain, num: int) -> Ints:
    row, found = len(rows), []
    while row:
        here, lower = int(chain.here[row, num]), int(chain.lower[row, num])
        columns = rows[row - 1].columns(here, lower)
        found += [(row - 1) * len(grid.contexts) + column for column in columns]
        row, num = lower, num - here
    return np.array(sorted(found), dtype=np.int64)
