"""Sets of decode graphs: any (num_seqs, context) pairs, products, and lists of num_seqs.

Every step runs in the cheapest graph that fits it. Costs are seconds of all steps of a demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..costs.cost import StepCosts
from .demand import DecodeDemand, Ints
from .grid import DecodeGrid, Service
from .product import ProductSet, product_sets
from .ragged import ragged_sets

Kind = Literal["ragged", "product", "list"]
Buckets = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class DecodeSet:
    """Decode graphs and what a demand costs with them.

    Attributes:
        buckets: (num_seqs, context_len), ascending; the last one is the limit.
        cost: seconds of all steps.
        bound: no set of this kind with as many graphs has a smaller ``total``, or None where that
            is not known. A set whose total is its bound is optimal.
        kind: ``ragged`` (any pairs), ``product`` or ``list`` (num_seqs, all with the largest
            context).
        fees: what the graphs cost to have, in seconds; 0 where no fees were given.
        is_cut_short: whether a clock ended the search, so that another machine may find another.
    """

    buckets: Buckets
    cost: float
    bound: float | None
    kind: Kind
    fees: float = 0.0
    is_cut_short: bool = False

    @property
    def total(self) -> float:
        """What was minimised: cost and fees."""
        return self.cost + self.fees

    @property
    def gap(self) -> float | None:
        """Share of the total that a better set may save at most; None without a bound."""
        if self.bound is None:
            return None
        return max(0.0, 1 - self.bound / self.total) if self.total else 0.0


def dispatch(
    buckets: Sequence[tuple[int, int]],
    costs: StepCosts,
    num_seqs: ArrayLike,
    context_lens: ArrayLike,
) -> Ints:
    """Return the index of the cheapest bucket that fits, the first of equals, for each step.

    Raises:
        ValueError: a step fits no bucket.
    """
    rows, columns = np.asarray(buckets, dtype=np.int64).T
    fits = (np.asarray(num_seqs)[..., None] <= rows) & (
        np.asarray(context_lens)[..., None] <= columns
    )
    if not fits.any(axis=-1).all():
        raise ValueError("a decode step needs more than every graph has")
    cheapest: Ints = np.where(fits, costs.decode_s(rows, columns), np.inf).argmin(axis=-1)
    return cheapest


def floor_cost(
    demand: DecodeDemand, costs: StepCosts, *, num_seqs: ArrayLike, contexts: ArrayLike
) -> float:
    """Return what the demand costs if every candidate is a graph: no set can be cheaper."""
    grid = DecodeGrid.of(demand, costs, num_seqs=num_seqs, contexts=contexts)
    at_least = np.minimum.accumulate(grid.seconds[::-1, ::-1], axis=0)
    at_least = np.minimum.accumulate(at_least, axis=1)[::-1, ::-1]
    return float((grid.weights * at_least).sum()) + grid.live_s


def best_ragged(
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    contexts: ArrayLike,
    max_num: int,
    must_have: Iterable[tuple[int, int]] = (),
    fees: ArrayLike | None = None,
) -> tuple[DecodeSet, ...]:
    """Return a ragged set of each size: the optimum by rows (see ragged), or better.

    The first set has what must be there and the limit, the others one graph more each, up to
    ``max_num`` or all candidates. None is worse than the one before it and the best graph to add:
    rows do not see that a step may go to a larger row if that is cheaper.

    Args:
        demand: the steps.
        costs: of a step of each graph.
        num_seqs: candidates, ascending; the last is the limit.
        contexts: candidates, ascending; the last is the limit.
        max_num: most graphs.
        must_have: graphs that every set has, the limit aside.
        fees: what it costs to have each graph ``[num_seqs, contexts]``, in seconds: with a price
            per compile second and per byte, the set that a budget allows (the cheapest ``total``
            of all sizes) follows from the prices.

    Raises:
        ValueError: ``max_num`` is too small for what must be there, or see ``DecodeGrid.of``.
    """
    grid = DecodeGrid.of(
        demand, costs, num_seqs=num_seqs, contexts=contexts, must_have=must_have, fees=fees
    )
    service = Service.of(grid)
    chosen = np.nonzero(service.required)[0]
    if len(chosen) > max_num:
        raise ValueError(f"{len(chosen)} decode graphs must be there, {max_num} are allowed")
    by_rows = {len(found.graphs): found.graphs for found in ragged_sets(grid, max_num)}
    sets = [ragged_set(grid, service, _cheaper(service, chosen, by_rows.get(len(chosen))))]
    for num in range(len(chosen) + 1, min(max_num, grid.seconds.size) + 1):
        added = np.append(chosen, service.totals_with_one_more(chosen).argmin())
        chosen = _cheaper(service, np.sort(added), by_rows.get(num))
        sets.append(ragged_set(grid, service, chosen))
    return tuple(sets)


def ragged_set(
    grid: DecodeGrid, service: Service, graphs: Ints, bound: float | None = None
) -> DecodeSet:
    """Return candidates of a grid as a set, with their cost under cheapest-fit dispatch."""
    fees = float(service.fees[graphs].sum())
    cost = service.cost(graphs) + grid.live_s
    whole_bound = None if bound is None else bound + grid.live_s
    return DecodeSet(grid.buckets(graphs), cost, whole_bound, "ragged", fees)


def _cheaper(service: Service, graphs: Ints, others: Ints | None) -> Ints:
    if others is None or service.total(graphs) <= service.total(others):
        return graphs
    return others


def best_product(
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    contexts: ArrayLike,
    max_num: int,
    must_have: Iterable[tuple[int, int]] = (),
    fees: ArrayLike | None = None,
) -> tuple[DecodeSet, ...]:
    """Return the best product of at most k graphs, for each k that allows one up to ``max_num``.

    For backends whose graphs are all pairs of two lists; arguments as for ``best_ragged``. Exact
    where there are few lists of num_seqs (see product); otherwise the bound is None.

    Raises:
        ValueError: see ``best_ragged``.
    """
    grid = DecodeGrid.of(
        demand, costs, num_seqs=num_seqs, contexts=contexts, must_have=must_have, fees=fees
    )
    found = product_sets(grid, max_num)
    return tuple(_product_set(grid, product, "product") for product in found)


def best_list(
    demand: DecodeDemand,
    costs: StepCosts,
    *,
    num_seqs: ArrayLike,
    context_len: int,
    max_num: int,
    must_have: Iterable[int] = (),
    fees: ArrayLike | None = None,
) -> tuple[DecodeSet, ...]:
    """Return the best list of at most k num_seqs, for each k up to ``max_num``, exact.

    For backends whose decode graphs all have the largest context.

    Args:
        demand: the steps.
        costs: of a step of each graph.
        num_seqs: candidates, ascending; the last is the limit.
        context_len: of every graph.
        max_num: most graphs.
        must_have: num_seqs that every list has, the limit aside.
        fees: what it costs to have each graph ``[num_seqs]``, in seconds.

    Raises:
        ValueError: see ``best_ragged``.
    """
    grid = DecodeGrid.of(
        demand,
        costs,
        num_seqs=num_seqs,
        contexts=[context_len],
        must_have=[(size, context_len) for size in must_have],
        fees=None if fees is None else np.asarray(fees)[..., None],
    )
    found = product_sets(grid, max_num)
    return tuple(_product_set(grid, product, "list") for product in found)


def _product_set(grid: DecodeGrid, product: ProductSet, kind: Kind) -> DecodeSet:
    service = Service.of(grid, product.graphs)
    cost = service.cost(np.arange(len(product.graphs))) + grid.live_s
    fees = float(service.fees.sum())
    bound = cost + fees if product.is_optimal else None
    return DecodeSet(grid.buckets(product.graphs), cost, bound, kind, fees)
