"""Small problems of decode graphs, and their answers by trying every set."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import ArrayLike, NDArray

from noria.bucketing.costs.cost import StepCosts
from noria.bucketing.sets.decode import DecodeSet
from noria.bucketing.sets.demand import DecodeDemand
from noria.bucketing.sets.grid import DecodeGrid

NUM_SEQS = (1, 2, 4, 8)
CONTEXTS = (128, 256, 512, 1024)

Floats = NDArray[np.float64]
Bucket = tuple[int, int]
Buckets = tuple[Bucket, ...]


@dataclass(frozen=True)
class TableCosts(StepCosts):
    """Seconds of decode graphs by a table; no other graph has any."""

    table: Floats
    source: str = "measured"
    error_share: float | None = None

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        raise NotImplementedError

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        rows, columns = np.broadcast_arrays(num_seqs, context_lens)
        assert np.isin(rows, NUM_SEQS).all()
        assert np.isin(columns, CONTEXTS).all()
        return self.table[np.searchsorted(NUM_SEQS, rows), np.searchsorted(CONTEXTS, columns)]


@dataclass(frozen=True)
class AreaCosts(StepCosts):
    """Seconds of decode graphs by what they read: a base, and one per request and token."""

    source: str = "roofline"
    error_share: float | None = None

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        raise NotImplementedError

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        return 20.0 + np.asarray(num_seqs) * np.asarray(context_lens)


@dataclass(frozen=True)
class Problem:
    demand: DecodeDemand
    costs: TableCosts
    must_have: Buckets
    fees: Floats | None

    @property
    def axes(self) -> dict[str, Any]:
        rows, columns = self.costs.table.shape
        return {"num_seqs": NUM_SEQS[:rows], "contexts": CONTEXTS[:columns]}

    @property
    def options(self) -> dict[str, Any]:
        return {**self.axes, "must_have": self.must_have, "fees": self.fees}

    @property
    def grid(self) -> DecodeGrid:
        return DecodeGrid.of(self.demand, self.costs, **self.options)

    @property
    def candidates(self) -> Buckets:
        return tuple(product(self.axes["num_seqs"], self.axes["contexts"]))

    @property
    def required(self) -> set[Bucket]:
        return {*self.must_have, self.candidates[-1]}

    def seconds(self, bucket: Bucket) -> float:
        return float(self.costs.decode_s(*bucket))

    def fee(self, buckets: Buckets) -> float:
        if self.fees is None:
            return 0.0
        return sum(float(self.fees.reshape(-1)[self.candidates.index(b)]) for b in buckets)

    def steps(self) -> list[tuple[int, int, float]]:
        demand = self.demand
        arrays = demand.num_seqs.tolist(), demand.context_lens.tolist(), demand.weights.tolist()
        return list(zip(*arrays, strict=True))

    def cost(self, buckets: Buckets) -> float:
        """What all steps cost, each in the cheapest graph that fits."""
        return sum(
            weight * min(self.seconds(b) for b in buckets if b[0] >= rows and b[1] >= context)
            for rows, context, weight in self.steps()
        )

    @cached_property
    def members(self) -> NDArray[np.bool_]:
        """Which graphs each set has, for all sets that have what must be there ``[sets, G]``."""
        num = len(self.candidates)
        members = (np.arange(1 << num)[:, None] >> np.arange(num) & 1).astype(np.bool_)
        is_required = [bucket in self.required for bucket in self.candidates]
        return members[members[:, is_required].all(axis=1)]

    @cached_property
    def totals(self) -> Floats:
        """Cost and fees of all sets, each step in the cheapest graph that fits ``[sets]``."""
        totals = self._fees_of_all()
        for rows, context, weight in self.steps():
            fits = [
                self.seconds(b) if b[0] >= rows and b[1] >= context else np.inf
                for b in self.candidates
            ]
            totals += weight * np.where(self.members, fits, np.inf).min(axis=1)
        return totals

    @cached_property
    def totals_by_rows(self) -> Floats:
        """Likewise, each step in its row's first graph that fits, or in the limit ``[sets]``."""
        totals = self._fees_of_all()
        limit = self.seconds(self.candidates[-1])
        for rows, context, weight in self.steps():
            seconds = np.full(len(totals), np.nan)
            for row in reversed([row for row in self.axes["num_seqs"] if row >= rows]):
                here = np.full(len(totals), limit)
                is_row = np.zeros(len(totals), dtype=np.bool_)
                for place, bucket in reversed(list(enumerate(self.candidates))):
                    if bucket[0] == row:
                        is_row |= self.members[:, place]
                        if bucket[1] >= context:
                            here[self.members[:, place]] = self.seconds(bucket)
                seconds = np.where(is_row, here, seconds)
            totals += weight * seconds
        return totals

    def _fees_of_all(self) -> Floats:
        fees = np.zeros(len(self.candidates)) if self.fees is None else self.fees.reshape(-1)
        return (self.members * fees).sum(axis=1)

    def best(self, num: int) -> float:
        """The smallest total of a set of ``num`` graphs."""
        return float(self.totals[self.members.sum(axis=1) == num].min())

    def best_by_rows(self, num: int) -> float:
        """Likewise, with steps in the first graph of their row."""
        return float(self.totals_by_rows[self.members.sum(axis=1) == num].min())

    def total_by_rows(self, buckets: Buckets) -> float:
        """What one set costs by rows."""
        members = [bucket in buckets for bucket in self.candidates]
        return float(self.totals_by_rows[(self.members == members).all(axis=1)][0])

    def best_set(self, num: int) -> DecodeSet:
        """A set of ``num`` graphs with the smallest total."""
        return self._set_at(np.where(self.members.sum(axis=1) == num, self.totals, np.inf).argmin())

    def worst_set(self, num: int) -> DecodeSet:
        """A set of ``num`` graphs with the largest total."""
        return self._set_at(np.where(self.members.sum(axis=1) == num, self.totals, -1.0).argmax())

    def _set_at(self, place: np.intp) -> DecodeSet:
        graphs = np.nonzero(self.members[place])[0].tolist()
        return self.set_of(tuple(self.candidates[graph] for graph in graphs))

    def set_of(self, buckets: Buckets) -> DecodeSet:
        return DecodeSet(buckets, self.cost(buckets), None, "ragged", self.fee(buckets))

    @cached_property
    def products(self) -> list[tuple[Buckets, float]]:
        """All products that have what must be there, with their totals."""
        found = []
        for rows, columns in product(*map(_subsets, self.axes.values())):
            buckets = tuple(product(rows, columns))
            if self.required <= set(buckets):
                found.append((buckets, self.cost(buckets) + self.fee(buckets)))
        return found

    def best_product(self, max_num: int) -> float:
        """The smallest total of a product of at most ``max_num`` graphs."""
        return min(total for buckets, total in self.products if len(buckets) <= max_num)


def _subsets(axis: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for num in range(1, len(axis) + 1):
        yield from combinations(axis, num)


@st.composite
def problems(
    draw: st.DrawFn, *, max_rows: int = 3, max_columns: int = 4, is_rising: bool = False
) -> Problem:
    """Draw small whole numbers, so that ties, zero weights and flat costs are common."""
    shape = draw(st.integers(1, max_rows)), draw(st.integers(1, max_columns))
    cells = st.lists(st.integers(0, 3), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    seconds = np.array(draw(cells), dtype=np.float64).reshape(shape)
    if is_rising:
        seconds = seconds.cumsum(axis=0).cumsum(axis=1)
    buckets = list(product(NUM_SEQS[: shape[0]], CONTEXTS[: shape[1]]))
    rows, columns = zip(*buckets, strict=True)
    return Problem(
        DecodeDemand.of(rows, columns, draw(cells)),
        TableCosts(seconds),
        tuple(draw(st.lists(st.sampled_from(buckets), max_size=2, unique=True))),
        draw(st.none() | cells.map(lambda fees: np.array(fees, dtype=np.float64).reshape(shape))),
    )


def random_problem(seed: int, *, with_fees: bool = False) -> Problem:
    """Return a problem of 4 x 4 graphs whose seconds grow with both sizes."""
    random = np.random.default_rng(seed)
    rows, columns = zip(*product(NUM_SEQS, CONTEXTS), strict=True)
    demand = DecodeDemand.of(rows, columns, random.integers(0, 50, len(rows)))
    seconds = random.integers(0, 9, (4, 4)).cumsum(axis=0).cumsum(axis=1).astype(np.float64)
    fees = random.integers(0, 999, (4, 4)).astype(np.float64) if with_fees else None
    return Problem(demand, TableCosts(seconds), (), fees)
