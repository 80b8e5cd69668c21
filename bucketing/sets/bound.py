"""A lower bound for sets of k graphs: the Lagrangian dual of the choice of graphs.

Each cell of demand offers a price for being served. A graph takes the offers that exceed what it
costs there; the k graphs that gain most, and what the cells keep, bound every set of k graphs from
below (whatever the prices). Raising the price of cells that nobody serves and lowering that of
cells that several serve leads to the bound of the linear program, with no solver and no matrix but
the service table; on the way the graphs that gain most are good sets themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .demand import Floats, Ints
from .grid import Service

NUM_ROUNDS = 600
PATIENCE = 12
"""Rounds without progress after which steps are halved."""


@dataclass(frozen=True, slots=True, eq=False)
class DualRound:
    """What one round found.

    Attributes:
        bound: of the total of every set of ``k`` graphs.
        graphs: the graphs that gain most, ascending ``[k]``.
        reduced: what each graph adds to the bound; negative if it gains ``[G]``.
    """

    bound: float
    graphs: Ints
    reduced: Floats


def dual_rounds(service: Service, num: int, upper: float, start: Ints) -> Iterator[DualRound]:
    """Yield the rounds of an ascent for sets of ``num`` graphs.

    Args:
        service: the problem.
        num: graphs in a set.
        upper: total of a set of that size, which sets the length of the steps.
        start: that set; the first prices are what it charges.
    """
    prices = service.work[:, start].min(axis=1)
    best, best_prices, idle, scale = -np.inf, prices, 0, 1.0
    for _ in range(NUM_ROUNDS):
        found, surplus = _round(service, num, prices)
        yield found
        if found.bound > best:
            best, best_prices, idle = found.bound, prices, 0
        else:
            idle += 1
        if idle > PATIENCE:
            scale, idle, prices = scale / 2, 0, best_prices
            continue
        norm = float((surplus * surplus).sum())
        if norm == 0.0:
            return
        step = scale * max(upper - found.bound, 1e-9 * abs(upper)) / norm
        prices = np.maximum(prices + step * surplus, 0.0)


def _round(service: Service, num: int, prices: Floats) -> tuple[DualRound, Floats]:
    """Return a round, and how much each cell is short of being served once ``[N]``."""
    charged = service.work_at_most(prices, np.arange(len(prices)))
    reduced = charged - prices.sum() + service.fees
    graphs = _best(reduced, service, num)
    served = (service.work[:, graphs] < prices[:, None]).sum(axis=1)
    bound = float(prices.sum() + reduced[graphs].sum())
    return DualRound(bound, graphs, reduced), 1.0 - served


def _best(reduced: Floats, service: Service, num: int) -> Ints:
    order = np.argsort(np.where(service.required, -np.inf, reduced), kind="stable")
    return np.sort(order[:num])
