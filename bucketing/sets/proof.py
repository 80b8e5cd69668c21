"""Proof: the optimal set of decode graphs, or a tighter bound, by integer programming (scipy).

Most candidates are ruled out first: a graph that would lift the dual bound above a known set if it
were there is in no better set, and one that would if it were not is in all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..costs.cost import StepCosts
from .bound import DualRound, dual_rounds
from .decode import DecodeSet, ragged_set
from .demand import DecodeDemand, Floats, Ints
from .grid import Bools, DecodeGrid, Service

SCALE = 1000.0
"""Total of the start in the program: the solver's tolerances are absolute."""
SLACK = 1e-9
"""Relative: a set whose total differs by less counts as equally good."""
TIME_LIMIT = 1
"""What the solver says when its time was over."""


def prove(
    start: DecodeSet,
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    contexts: ArrayLike,
    must_have: Iterable[tuple[int, int]] = (),
    fees: ArrayLike | None = None,
    max_s: float = 60.0,
) -> DecodeSet:
    """Return the best set of as many graphs, or the best and the bound that were found in time.

    Arguments as for ``substitute``; the better ``start`` is, the less is left to prove. What ends
    in time is the same every time, and optimal to the tolerance of the solver, a relative 1e-6.

    Args:
        max_s: seconds after which the solver stops.

    Raises:
        ImportError: scipy is not installed.
        ValueError: see ``substitute``.
    """
    optimize, sparse = _scipy()
    grid = DecodeGrid.of(
        demand, costs, num_seqs=num_seqs, contexts=contexts, must_have=must_have, fees=fees
    )
    service, graphs = Service.of(grid), grid.graphs(start.buckets)
    rest = _Rest.of(service, graphs)
    solution = _solve(_Program.of(rest), optimize, sparse, max_s)
    found = rest.graphs if solution.x is None else rest.graphs[solution.x[: len(rest.graphs)] > 0.5]
    if len(found) == len(graphs) and service.total(found) < rest.total:
        graphs = found
    solved = -np.inf if solution.mip_dual_bound is None else solution.mip_dual_bound / rest.scale
    bound = min(max(solved, rest.bound), service.total(graphs))
    is_cut_short = start.is_cut_short or solution.status == TIME_LIMIT
    return replace(ragged_set(grid, service, graphs, bound), is_cut_short=is_cut_short)


@dataclass(frozen=True, slots=True, eq=False)
class _Rest:
    """What the dual leaves open: graphs that a better set may have, and the service by them.

    Attributes:
        service: by ``graphs``; required are also those that every better set has.
        graphs: candidates, ascending.
        num: graphs in a set.
        total: of the known set.
        bound: of the dual.
    """

    service: Service
    graphs: Ints
    num: int
    total: float
    bound: float

    @classmethod
    def of(cls, service: Service, start: Ints) -> _Rest:
        total, bound = service.total(start), 0.0
        may, must = np.ones_like(service.required), service.required.copy()
        most = total * (1 + SLACK)
        for found in dual_rounds(service, len(start), total, start):
            bound = max(bound, found.bound)
            with_it, without_it = _forced(service, found)
            may &= with_it <= most
            must |= without_it > most
        # The start itself stays, so that the program has a solution whatever the rounding.
        may[start] = True
        graphs = np.nonzero(may)[0]
        kept = Service(service.work[:, graphs], service.fees[graphs], must[graphs])
        return cls(_merged(kept), graphs, len(start), total, bound)

    @property
    def scale(self) -> float:
        """Units of the program per second."""
        return SCALE / self.total if self.total else 1.0


def _forced(service: Service, found: DualRound) -> tuple[Floats, Floats]:
    """Return the bound of a round with each graph forced in, and with each forced out ``[G]``."""
    is_open = np.zeros_like(service.required)
    is_open[found.graphs] = True
    free = found.reduced[is_open & ~service.required]
    closed = found.reduced[~is_open]
    change_in = found.reduced - (free.max() if free.size else -np.inf)
    change_out = (closed.min() if closed.size else np.inf) - found.reduced
    with_it = np.where(is_open, found.bound, found.bound + change_in)
    without_it = np.where(is_open, found.bound + change_out, found.bound)
    return with_it, without_it


def _merged(service: Service) -> Service:
    """Add up cells that the same graphs fit: their steps go to the same graph in every set."""
    _, index = np.unique(np.isfinite(service.work), axis=0, return_inverse=True)
    order = np.argsort(index.reshape(-1), kind="stable")
    starts = np.unique(index.reshape(-1)[order], return_index=True)[1]
    if not len(order):
        return service
    return replace(service, work=np.add.reduceat(service.work[order], starts, axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class _Program:
    """Minimise cost @ x where rows @ x >= at_least and the first unknowns add up to ``num``.

    The first unknowns say which graphs there are. For each cell follow, by rising work of the
    graphs that fit, whether all graphs up to that one are missing: then the steps pay the
    difference to the next one. Behind the last one comes a graph that every set has. The very last
    unknown is 1.

    Attributes:
        cost: of each unknown.
        entries: (value, row, unknown) of the rows.
        at_least: of each row.
        is_there: graphs that every set has.
        num: graphs in a set.
    """

    cost: Floats
    entries: tuple[Floats, Ints, Ints]
    at_least: Floats
    is_there: Bools
    num: int

    @classmethod
    def of(cls, rest: _Rest) -> _Program:
        service = rest.service
        steps = [_levels(work * rest.scale, service.required) for work in service.work]
        graphs = np.concatenate([np.zeros(0, np.int64), *(graphs for graphs, _ in steps)])
        rises = [np.diff(levels) for _, levels in steps]
        constant = sum(float(levels[0]) for _, levels in steps)
        cost = np.concatenate([service.fees * rest.scale, *rises, [constant]])
        row = np.arange(len(graphs))
        is_first = np.concatenate([np.zeros(0, np.bool_), *(np.arange(len(r)) == 0 for r in rises)])
        later = np.nonzero(~is_first)[0]
        missing = len(service.fees) + row
        entries = (
            np.repeat([1.0, 1.0, -1.0], [len(row), len(row), len(later)]),
            np.concatenate([row, row, later]),
            np.concatenate([graphs, missing, missing[later] - 1]),
        )
        return cls(cost, entries, is_first.astype(np.float64), service.required, rest.num)


def _levels(work: Floats, required: Bools) -> tuple[Ints, Floats]:
    """Return the graphs that beat those of every set, by rising work, and the work of all."""
    last = work[required].min()
    better = np.nonzero(work < last)[0]
    better = better[np.argsort(work[better], kind="stable")]
    return better, np.append(work[better], last)


def _solve(program: _Program, optimize: Any, sparse: Any, max_s: float) -> Any:
    num_graphs, num_unknown = len(program.is_there), len(program.cost)
    values, rows, unknowns = program.entries
    shape = (len(program.at_least), num_unknown)
    lower = np.concatenate([program.is_there, np.zeros(num_unknown - num_graphs)])
    lower[-1] = 1.0
    is_graph = (np.arange(num_unknown) < num_graphs).astype(np.float64)
    return optimize.milp(
        program.cost,
        integrality=is_graph,
        bounds=optimize.Bounds(lower, 1.0),
        constraints=[
            optimize.LinearConstraint(is_graph[None], program.num, program.num),
            optimize.LinearConstraint(
                sparse.csr_array((values, (rows, unknowns)), shape), program.at_least, np.inf
            ),
        ],
        options={"time_limit": max_s, "mip_rel_gap": 0.0},
    )


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ImportError as error:
        raise ImportError("the proof needs scipy: install noria[prove]", name="scipy") from error
    return optimize, sparse
