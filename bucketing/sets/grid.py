"""The grid on which decode graphs are chosen: demand, seconds and fees of every candidate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..costs.cost import StepCosts
from .demand import DecodeDemand, Floats, Ints

Bools = NDArray[np.bool_]
MAX_SERVICE_ENTRIES = 1 << 27
"""Most pairs of a cell and a graph that are held at once: 1 GiB of float64."""
BLOCK = 64
"""Cells that are added up at once: few enough that their work stays in a processor's cache."""


@dataclass(frozen=True, slots=True, eq=False)
class DecodeGrid:
    """All candidates (num_seqs, context_len), and how much demand lies below each and no other.

    A candidate is named by its index in the flattened grid; the last one is the limit.

    Attributes:
        num_seqs: ascending ``[B]``.
        contexts: ascending ``[C]``.
        weights: steps that need a row and a column, and nothing smaller ``[B, C]``.
        seconds: of a step of each graph ``[B, C]``.
        fees: what it costs to have each graph, in the unit of the total cost ``[B, C]``.
        required: graphs that every set has, the limit among them ``[B, C]``.
        live_s: seconds of all steps that no graph saves, see ``StepCosts.live_s``.
    """

    num_seqs: Ints
    contexts: Ints
    weights: Floats
    seconds: Floats
    fees: Floats
    required: Bools
    live_s: float

    @classmethod
    def of(
        cls,
        demand: DecodeDemand,
        costs: StepCosts,
        *,
        num_seqs: ArrayLike,
        contexts: ArrayLike,
        must_have: Iterable[tuple[int, int]] = (),
        fees: ArrayLike | None = None,
    ) -> DecodeGrid:
        """Round the demand up to the grid and price its graphs.

        Raises:
            ValueError: an axis is not ascending, a step needs more than the limit, a graph that
                must be there is not on the grid, or a fee or a time is not a number of at least 0.
        """
        rows, columns = _axis("num_seqs", num_seqs), _axis("contexts", contexts)
        seconds = np.broadcast_to(costs.decode_s(rows[:, None], columns), (len(rows), len(columns)))
        return cls(
            rows,
            columns,
            _rounded_up(demand, rows, columns),
            _amounts("seconds", seconds, seconds.shape),
            _amounts("fees", 0.0 if fees is None else fees, seconds.shape),
            _required(rows, columns, must_have),
            float(costs.live_s(demand.num_seqs, demand.live_lens) @ demand.weights),
        )

    @property
    def limit(self) -> int:
        """The graph that fits every step."""
        return self.seconds.size - 1

    def buckets(self, graphs: Ints) -> tuple[tuple[int, int], ...]:
        """Return (num_seqs, context_len) of graphs."""
        rows, columns = np.divmod(graphs, len(self.contexts))
        pairs = zip(self.num_seqs[rows].tolist(), self.contexts[columns].tolist(), strict=True)
        return tuple(pairs)

    def graphs(self, buckets: Iterable[tuple[int, int]]) -> Ints:
        """Return the candidates of a set, ascending.

        Raises:
            ValueError: a bucket is not on the grid, or one that must be there is missing.
        """
        places = [_place(self.num_seqs, self.contexts, bucket) for bucket in set(buckets)]
        flat = [row * len(self.contexts) + column for row, column in places]
        missing = np.setdiff1d(np.nonzero(self.required.reshape(-1))[0], flat)
        if missing.size:
            num_seqs, context_len = self.buckets(missing)[0]
            raise ValueError(f"decode graph {num_seqs} x {context_len} must be in the set")
        return np.array(sorted(flat), dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Service:
    """What each graph would cost each cell of demand: the problem without its geometry.

    Attributes:
        work: seconds of all steps of a cell in a graph, inf where it does not fit ``[N, G]``.
        fees: of each graph ``[G]``.
        required: graphs that every set has ``[G]``.
    """

    work: Floats
    fees: Floats
    required: Bools

    @classmethod
    def of(cls, grid: DecodeGrid, graphs: Ints | None = None) -> Service:
        """Describe the service by ``graphs``, or by all candidates; cells without steps drop out.

        Raises:
            ValueError: the grid is too large for that.
        """
        chosen = np.arange(grid.seconds.size) if graphs is None else graphs
        cells = np.nonzero(grid.weights.reshape(-1))[0]
        if len(cells) * len(chosen) > MAX_SERVICE_ENTRIES:
            raise ValueError(
                f"{len(cells)} needs x {len(chosen)} decode graphs are too many to compare: "
                "take fewer contexts or num_seqs"
            )
        fits = _fits(len(grid.contexts), cells, chosen)
        work = grid.weights.reshape(-1)[cells, None] * grid.seconds.reshape(-1)[chosen]
        work[~fits] = np.inf
        return cls(work, grid.fees.reshape(-1)[chosen], grid.required.reshape(-1)[chosen])

    def cost(self, chosen: Ints) -> float:
        """Return the seconds of all steps, each in the cheapest of the chosen graphs."""
        return float(self.work[:, chosen].min(axis=1).sum())

    def total(self, chosen: Ints) -> float:
        """Return the seconds of all steps and the fees of the graphs."""
        return self.cost(chosen) + float(self.fees[chosen].sum())

    def totals_with_one_more(self, chosen: Ints) -> Floats:
        """Return the total for each graph that could be added, inf for those chosen ``[G]``."""
        now = self.work[:, chosen].min(axis=1)
        added = self.work_at_most(now, np.arange(len(now))) + self.fees
        added[chosen] = np.inf
        return added + float(self.fees[chosen].sum())

    def work_at_most(self, most: Floats, cells: Ints) -> Floats:
        """Return the work of ``cells`` in each graph, where a cell counts at most ``most`` ``[G]``.

        Args:
            most: seconds of each cell, of all cells ``[N]``.
            cells: those that count.
        """
        total = np.zeros(self.work.shape[1])
        for start in range(0, len(cells), BLOCK):
            some = cells[start : start + BLOCK]
            total += np.minimum(self.work[some], most[some, None]).sum(axis=0)
        return total


def _fits(num_contexts: int, cells: Ints, graphs: Ints) -> Bools:
    cell_rows, cell_columns = np.divmod(cells[:, None], num_contexts)
    rows, columns = np.divmod(graphs, num_contexts)
    fits: Bools = (cell_rows <= rows) & (cell_columns <= columns)
    return fits


def _axis(name: str, values: ArrayLike) -> Ints:
    axis = np.asarray(values, dtype=np.int64)
    if axis.ndim != 1 or not axis.size or axis[0] < 1 or not (np.diff(axis) > 0).all():
        raise ValueError(f"{name} of decode graphs must be positive and ascending")
    return axis


def _amounts(name: str, values: ArrayLike, shape: tuple[int, ...]) -> Floats:
    amounts = np.broadcast_to(np.asarray(values, dtype=np.float64), shape)
    if not (amounts >= 0).all() or not np.isfinite(amounts).all():
        raise ValueError(f"{name} of decode graphs must be finite and not negative")
    return amounts


def _rounded_up(demand: DecodeDemand, rows: Ints, columns: Ints) -> Floats:
    row = np.searchsorted(rows, demand.num_seqs)
    column = np.searchsorted(columns, demand.context_lens)
    outside = (row == len(rows)) | (column == len(columns))
    if outside.any():
        first = int(np.argmax(outside))
        raise ValueError(
            f"a decode step needs num_seqs {demand.num_seqs[first]} and context "
            f"{demand.context_lens[first]}; the limit is {rows[-1]} and {columns[-1]}"
        )
    cell = row * len(columns) + column
    flat: Floats = np.bincount(cell, demand.weights, len(rows) * len(columns)).astype(np.float64)
    return flat.reshape(len(rows), len(columns))


def _required(rows: Ints, columns: Ints, must_have: Iterable[tuple[int, int]]) -> Bools:
    required = np.zeros((len(rows), len(columns)), dtype=np.bool_)
    for bucket in (*must_have, (rows[-1], columns[-1])):
        required[_place(rows, columns, bucket)] = True
    return required


def _place(rows: Ints, columns: Ints, bucket: tuple[int, int]) -> tuple[int, int]:
    row, column = np.nonzero(rows == bucket[0])[0], np.nonzero(columns == bucket[1])[0]
    if not (row.size and column.size):
        raise ValueError(f"decode graph {bucket[0]} x {bucket[1]} is not on the grid")
    return int(row[0]), int(column[0])
