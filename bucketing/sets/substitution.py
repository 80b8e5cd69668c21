"""Vertex substitution: exchange graphs of a set while that makes it cheaper, for any deadline.

Descend by the best exchange of all; take what the dual bound finds on its way; then shake the best
set and descend again. Every step is counted, none is timed: with enough time the result is always
the same, and with less it is what was best at the deadline.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..costs.cost import StepCosts
from .bound import dual_rounds
from .decode import DecodeSet, ragged_set
from .demand import DecodeDemand, Floats, Ints
from .grid import DecodeGrid, Service

NUM_SHAKES = 200
MAX_SHAKEN = 3
CLOSE_ENOUGH = 1e-9
"""Relative difference of two totals that counts as none: rounding errors are below it."""


def substitute(
    start: DecodeSet,
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    contexts: ArrayLike,
    must_have: Iterable[tuple[int, int]] = (),
    fees: ArrayLike | None = None,
    deadline_s: float,
    clock: Callable[[], float] = time.monotonic,
) -> DecodeSet:
    """Return a set of as many graphs that is not worse than ``start``, with a lower bound.

    Args:
        start: a ragged set or a product on the same grid.
        demand: as for ``best_ragged``, and so are the others.
        costs: of a step of each graph.
        num_seqs: candidates, ascending.
        contexts: candidates, ascending.
        must_have: graphs that stay.
        fees: what it costs to have each graph ``[num_seqs, contexts]``, in seconds.
        deadline_s: seconds from now after which the best set so far is returned.
        clock: tells the time in seconds.

    Raises:
        ValueError: ``start`` has graphs that are not on the grid, or lacks one that stays.
    """
    ends_at = clock() + deadline_s
    grid = DecodeGrid.of(
        demand, costs, num_seqs=num_seqs, contexts=contexts, must_have=must_have, fees=fees
    )
    search = _Search.of(grid, start, lambda: clock() >= ends_at)
    search.run()
    return ragged_set(grid, search.service, search.best, search.bound)


@dataclass(slots=True, eq=False)
class _Search:
    """The best set so far and what bounds it."""

    service: Service
    best: Ints
    total: float
    bound: float | None
    is_late: Callable[[], bool]

    @classmethod
    def of(cls, grid: DecodeGrid, start: DecodeSet, is_late: Callable[[], bool]) -> _Search:
        service = Service.of(grid)
        graphs = grid.graphs(start.buckets)
        return cls(service, graphs, service.total(graphs), None, is_late)

    def run(self) -> None:
        """Go on until nothing is left to try, the set is optimal, or it is late."""
        self._descend(self.best)
        self._raise_bound()
        random = np.random.default_rng(0)
        for _ in range(NUM_SHAKES):
            if self.is_late() or self._is_optimal():
                return
            self._descend(_shaken(self.service, self.best, random))

    def _is_optimal(self) -> bool:
        return self.bound is not None and self.total - self.bound <= CLOSE_ENOUGH * self.total

    def _keep(self, graphs: Ints, total: float) -> None:
        if total < self.total * (1 - CLOSE_ENOUGH):
            self.best, self.total = graphs, total

    def _descend(self, graphs: Ints) -> None:
        """Exchange graphs until no exchange helps, and keep the result if it is the best."""
        total = self.service.total(graphs)
        while not self.is_late():
            totals = _exchanged_totals(self.service, graphs)
            out, into = np.unravel_index(int(totals.argmin()), totals.shape)
            if totals[out, into] >= total * (1 - CLOSE_ENOUGH):
                break
            graphs = np.sort(np.append(np.delete(graphs, out), into))
            total = self.service.total(graphs)
        self._keep(graphs, total)

    def _raise_bound(self) -> None:
        """Raise the bound, once even if it is late, and descend from the best set of its rounds."""
        best, best_total = self.best, np.inf
        for found in dual_rounds(self.service, len(self.best), self.total, self.best):
            self.bound = found.bound if self.bound is None else max(self.bound, found.bound)
            if self.is_late() or self._is_optimal():
                break
            total = self.service.total(found.graphs)
            if total < best_total:
                best, best_total = found.graphs, total
        self._descend(best)


def _exchanged_totals(service: Service, graphs: Ints) -> Floats:
    """Return the total after each exchange, inf for those that may not be ``[k, G]``."""
    work = service.work[:, graphs]
    cell = np.arange(len(work))
    cheapest = work.argmin(axis=1)
    first = work[cell, cheapest]
    work[cell, cheapest] = np.inf
    kept = np.minimum(service.work, first[:, None])
    lost = np.minimum(service.work, work.min(axis=1)[:, None]) - kept
    totals = np.broadcast_to(kept.sum(axis=0) + service.fees, (len(graphs), kept.shape[1])).copy()
    for place in range(len(graphs)):
        totals[place] += lost[cheapest == place].sum(axis=0) - service.fees[graphs[place]]
    totals[service.required[graphs]] = np.inf
    totals[:, graphs] = np.inf
    return totals + float(service.fees[graphs].sum())


def _shaken(service: Service, graphs: Ints, random: np.random.Generator) -> Ints:
    """Replace a few graphs that may go by random others."""
    may_go = graphs[~service.required[graphs]]
    others = np.setdiff1d(np.arange(len(service.fees)), graphs)
    num = min(MAX_SHAKEN, len(may_go), len(others))
    gone = random.choice(may_go, num, replace=False)
    more = random.choice(others, num, replace=False)
    return np.sort(np.append(np.setdiff1d(graphs, gone), more))
