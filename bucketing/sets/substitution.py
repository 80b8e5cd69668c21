"""Vertex substitution: exchange graphs of a set while that makes it cheaper, for any deadline.

Descend by the best exchange of all; take what the dual bound finds on its way; then shake the best
set and descend again. The search ends after so much work, which is counted: its result is the same
every time and everywhere, unless the clock ended it first, and then the set says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import inf

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
LOOKS_PER_S = 2.5e8
"""Looks at the work of a cell in a graph that a second is taken for; few machines take longer."""
LATE = 2.0
"""Times the seconds that a search is meant to take, after which the clock ends it."""


def substitute(
    start: DecodeSet,
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    contexts: ArrayLike,
    must_have: Iterable[tuple[int, int]] = (),
    fees: ArrayLike | None = None,
    max_looks: float = inf,
    deadline_s: float = inf,
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
        max_looks: at the work of a cell in a graph, after which the best set so far is returned;
            see ``LOOKS_PER_S``. The bound is looked for once in any case.
        deadline_s: seconds from now after which it is returned all the same.
        clock: tells the time in seconds.

    Raises:
        ValueError: ``start`` has graphs that are not on the grid, or lacks one that stays.
    """
    effort = _Effort(max_looks, clock() + deadline_s, clock)
    grid = DecodeGrid.of(
        demand, costs, num_seqs=num_seqs, contexts=contexts, must_have=must_have, fees=fees
    )
    search = _Search.of(grid, start, effort)
    search.run()
    found = ragged_set(grid, search.service, search.best, search.bound)
    return replace(found, is_cut_short=effort.is_late)


@dataclass(slots=True)
class _Effort:
    """What a search may take, and has taken.

    Attributes:
        max_looks: all that it may take.
        ends_at: the time at which it ends all the same.
        clock: tells the time.
        num_looks: those taken so far.
        is_late: whether the clock ended it.
    """

    max_looks: float
    ends_at: float
    clock: Callable[[], float]
    num_looks: float = 0.0
    is_late: bool = False

    def is_over(self) -> bool:
        """Tell whether the search must end."""
        if self.num_looks >= self.max_looks:
            return True
        self.is_late = self.is_late or self.clock() >= self.ends_at
        return self.is_late


@dataclass(slots=True, eq=False)
class _Search:
    """The best set so far and what bounds it."""

    service: Service
    best: Ints
    total: float
    bound: float | None
    effort: _Effort

    @classmethod
    def of(cls, grid: DecodeGrid, start: DecodeSet, effort: _Effort) -> _Search:
        service = Service.of(grid)
        graphs = grid.graphs(start.buckets)
        return cls(service, graphs, service.total(graphs), None, effort)

    def run(self) -> None:
        """Go on until nothing is left to try, the set is optimal, or the effort is over."""
        self._descend(self.best)
        self._raise_bound()
        random = np.random.default_rng(0)
        for _ in range(NUM_SHAKES):
            if self._is_optimal() or self.effort.is_over():
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
        while not self.effort.is_over():
            totals = _exchanged_totals(self.service, graphs)
            self.effort.num_looks += 2 * self.service.work.size
            out, into = np.unravel_index(int(totals.argmin()), totals.shape)
            if totals[out, into] >= total * (1 - CLOSE_ENOUGH):
                break
            graphs = np.sort(np.append(np.delete(graphs, out), into))
            total = self.service.total(graphs)
        self._keep(graphs, total)

    def _raise_bound(self) -> None:
        """Raise the bound, once in any case, and descend from the best set of its rounds."""
        best, best_total = self.best, np.inf
        for found in dual_rounds(self.service, len(self.best), self.total, self.best):
            self.bound = found.bound if self.bound is None else max(self.bound, found.bound)
            self.effort.num_looks += self.service.work.size
            if self._is_optimal() or self.effort.is_over():
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
    second = work.min(axis=1)
    kept, lost = np.zeros(len(service.fees)), []
    for place, graph in enumerate(graphs):
        own = np.nonzero(cheapest == place)[0]
        here = service.work_at_most(first, own)
        kept += here
        lost.append(service.work_at_most(second, own) - here - service.fees[graph])
    totals = kept + service.fees + np.array(lost)
    totals[service.required[graphs]] = np.inf
    totals[:, graphs] = np.inf
    exchanged: Floats = totals + float(service.fees[graphs].sum())
    return exchanged


def _shaken(service: Service, graphs: Ints, random: np.random.Generator) -> Ints:
    """Replace a few graphs that may go by random others."""
    may_go = graphs[~service.required[graphs]]
    others = np.setdiff1d(np.arange(len(service.fees)), graphs)
    num = min(MAX_SHAKEN, len(may_go), len(others))
    gone = random.choice(may_go, num, replace=False)
    more = random.choice(others, num, replace=False)
    return np.sort(np.append(np.setdiff1d(graphs, gone), more))
