"""Covering finds the cheapest chunks there are, for every length at once."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import ArrayLike

from noria.bucketing import CoverPolicy
from noria.bucketing.costs.cost import Floats, StepCosts
from noria.bucketing.sets.cover_search import best_covering_sizes
from noria.bucketing.sets.covering import (
    CoverTable,
    Prefix,
    cover_table,
    followed_seconds,
    graph_prefix,
    prefix_read,
)
from noria.bucketing.sets.demand import PrefillDemand

MAX_LEN = 24
CONTEXT_LEN = 30
PREFIXES = st.sampled_from(["exact", "bucketed", "max"])


@dataclass(frozen=True)
class PrefillCosts(StepCosts):
    """Costs of prompts alone."""

    source: str = "measured"
    error_share: float | None = None

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TableCosts(PrefillCosts):
    """Seconds by rows and prefix, whatever they are."""

    rows: np.ndarray

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        found: Floats = self.rows[np.asarray(num_tokens), np.asarray(prefix_lens)]
        return found


class LaunchCosts(PrefillCosts):
    """A launch, rows, and what each row reads."""

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        num, read = np.asarray(num_tokens, dtype=float), np.asarray(prefix_lens, dtype=float)
        found: Floats = 64.0 + np.maximum(num, 96.0) + num * (num / 2 + read) / 4096
        return found


COSTS = st.integers(0, 2**32 - 1).map(
    lambda seed: TableCosts(
        rows=np.random.default_rng(seed)
        .integers(0, 20, (MAX_LEN + 1, CONTEXT_LEN + 1))
        .astype(float)
    )
)
SIZES = st.sets(st.integers(1, MAX_LEN), min_size=1, max_size=4).map(sorted)


@given(SIZES, COSTS, PREFIXES)
def test_every_length_takes_its_shortest_path(
    sizes: list[int], costs: TableCosts, prefix: Prefix
) -> None:
    table = cover_table(sizes, costs, MAX_LEN, prefix=prefix, context_len=CONTEXT_LEN)

    expected = [dijkstra(sizes, costs, prefix, length) for length in range(MAX_LEN + 1)]
    assert table.seconds.tolist() == [seconds for seconds, _ in expected]
    for chunk, (_, largest) in zip(table.first_chunk.tolist(), expected, strict=True):
        assert chunk in largest


def dijkstra(
    sizes: Sequence[int], costs: TableCosts, prefix: Prefix, length: int
) -> tuple[float, set[int]]:
    """Return the least seconds of a prompt, and the largest chunk of each way that takes them."""
    reads = prefix_read(np.arange(MAX_LEN), prefix=prefix, context_len=CONTEXT_LEN)
    queue, done = [(0.0, 0, 0)], set()
    best, largest = inf, set()
    while queue:
        seconds, offset, chunk = heapq.heappop(queue)
        if (offset, chunk, seconds) in done or seconds > best:
            continue
        done.add((offset, chunk, seconds))
        if offset >= length:
            best = seconds
            largest.add(chunk)
            continue
        for size in sizes:
            step = float(costs.rows[size, reads[offset]])
            heapq.heappush(queue, (seconds + step, min(offset + size, length), max(chunk, size)))
    return best, largest


@given(SIZES, COSTS)
def test_where_all_chunks_read_alike_the_table_is_followed_at_its_price(
    sizes: list[int], costs: TableCosts
) -> None:
    table = cover_table(sizes, costs, MAX_LEN, prefix="max", context_len=CONTEXT_LEN)

    followed = followed_seconds(table.first_chunk, costs, prefix="max", context_len=CONTEXT_LEN)

    assert followed.tolist() == table.seconds.tolist()


@given(SIZES, COSTS, PREFIXES, st.integers(1, MAX_LEN))
def test_following_costs_what_its_chunks_cost(
    sizes: list[int], costs: TableCosts, prefix: Prefix, length: int
) -> None:
    table = cover_table(sizes, costs, MAX_LEN, prefix=prefix, context_len=CONTEXT_LEN)
    chunks = table.chunks(length)
    starts = np.cumsum([0, *chunks[:-1]])

    followed = followed_seconds(table.first_chunk, costs, prefix=prefix, context_len=CONTEXT_LEN)

    reads = prefix_read(starts, prefix=prefix, context_len=CONTEXT_LEN)
    assert followed[length] == sum(costs.rows[c, r] for c, r in zip(chunks, reads, strict=True))
    assert followed[length] >= table.seconds[length]
    assert starts[-1] < length <= sum(chunks)


def test_a_prompt_is_split_where_padding_costs_more() -> None:
    sizes = [128, 256, 512, 1024, 2048, 4096]

    table = cover_table(sizes, LaunchCosts(), 5000, prefix="exact", context_len=8192)

    assert table.chunks(2734) == (2048, 512, 256)
    assert table.chunks(4090) == (4096,)
    assert table.chunks(4096) == (4096,)
    assert table.chunks(1) == (128,)
    assert table.chunks(0) == ()


def test_the_policy_runs_a_prompt_as_the_table_says() -> None:
    sizes = [96, 256, 1000]
    table = cover_table(sizes, LaunchCosts(), 3000, prefix="exact", context_len=4096)
    policy = CoverPolicy.of_changes(table.changes(), 1000, max_num_seqs=8)

    assert list(policy.first_chunk) == table.first_chunk.tolist()[: len(policy.first_chunk)]
    assert len(set(table.first_chunk[len(policy.first_chunk) - 1 :].tolist())) == 1
    for length in (1, 96, 97, 700, 1000, 1001, 2999):
        left, steps = length, []
        while left:
            steps += policy.pack([left])
            left -= steps[-1]
        chunks = table.chunks(length)
        assert steps == [*chunks[:-1], length - sum(chunks[:-1])]


def test_lengths_of_one_unit_cost_the_same() -> None:
    table = cover_table([32, 48], LaunchCosts(), 200, prefix="exact", context_len=256)

    assert gcd(32, 48) == 16
    assert all(len(set(table.seconds[i + 1 : i + 17].tolist())) == 1 for i in range(0, 192, 16))


def test_changes_say_where_the_chunk_changes() -> None:
    table = CoverTable(np.array([0, 4, 4, 2, 2, 8]), np.zeros(6))

    assert table.changes() == ((1, 4), (3, 2), (5, 8))


@pytest.mark.parametrize(
    ("sizes", "max_len", "text"),
    [
        ([], 8, "sizes must be positive and strictly increasing"),
        ([0, 4], 8, "sizes must be positive"),
        ([4, 4], 8, "strictly increasing"),
        ([4], 0, "max_len must be 1 to context_len 16, got 0"),
        ([4], 17, "max_len must be 1 to context_len 16, got 17"),
    ],
)
def test_what_covers_nothing_is_refused(sizes: list[int], max_len: int, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        cover_table(sizes, LaunchCosts(), max_len, prefix="exact", context_len=16)


DEMAND = PrefillDemand.of(np.random.default_rng(3).lognormal(7, 1, 500).astype(int) % 6000 + 1)
CANDIDATES = np.arange(128, 6145, 128)


def cost_of(
    sizes: Sequence[int], demand: PrefillDemand = DEMAND, prefix: Prefix = "exact"
) -> float:
    table = cover_table(sizes, LaunchCosts(), 6144, prefix=prefix, context_len=6144)
    return float(DEMAND.weights @ table.seconds[DEMAND.sizes])


@pytest.mark.parametrize("prefix", ["exact", "bucketed", "max"])
def test_searched_sets_cost_what_their_tables_say_and_each_size_saves(prefix: Prefix) -> None:
    sets = best_covering_sizes(
        DEMAND, CANDIDATES, LaunchCosts(), max_num=5, prefix=prefix, context_len=6144
    )

    assert [len(one.sizes) for one in sets] == list(range(1, len(sets) + 1))
    assert [one.cost for one in sets] == sorted((one.cost for one in sets), reverse=True)
    for one in sets:
        assert one.cost == pytest.approx(cost_of(one.sizes, prefix=prefix), rel=1e-9)


def test_no_size_of_a_searched_set_can_be_moved_with_gain() -> None:
    found = best_covering_sizes(
        DEMAND, CANDIDATES, LaunchCosts(), max_num=3, prefix="exact", context_len=6144
    )[-1]

    for size in found.sizes:
        others = set(found.sizes) - {size}
        near = {size - 128, size + 128, size - 256, size + 256} & set(CANDIDATES.tolist())
        for moved in near - others:
            assert cost_of(sorted({*others, moved})) >= found.cost * (1 - 1e-9)


def test_small_choices_are_searched_to_the_best() -> None:
    candidates = np.array([128, 256, 640, 1152, 2048, 6144])
    sets = best_covering_sizes(
        DEMAND, candidates, LaunchCosts(), max_num=6, prefix="exact", context_len=6144
    )

    for one in sets:
        every = subsets(candidates.tolist(), len(one.sizes))
        assert one.cost == pytest.approx(min(cost_of(sizes) for sizes in every), rel=1e-9)


def subsets(sizes: list[int], num: int) -> list[list[int]]:
    marks = [[i for i in range(len(sizes)) if mark >> i & 1] for mark in range(1 << len(sizes))]
    return [[sizes[i] for i in one] for one in marks if len(one) == num]


@pytest.mark.parametrize("size", CANDIDATES[-6:].tolist())
def test_must_haves_alone_are_a_set(size: int) -> None:
    (found,) = best_covering_sizes(
        DEMAND,
        CANDIDATES,
        LaunchCosts(),
        max_num=1,
        prefix="exact",
        context_len=6144,
        must_have=[size],
    )

    assert found.sizes == (size,)
    assert found.cost == pytest.approx(cost_of([size]), rel=1e-9)


def test_must_haves_stay_and_count() -> None:
    sets = best_covering_sizes(
        DEMAND,
        CANDIDATES,
        LaunchCosts(),
        max_num=4,
        prefix="exact",
        context_len=6144,
        must_have=[3072, 6144],
    )

    assert [len(one.sizes) for one in sets] == [2, 3, 4]
    assert all({3072, 6144} <= set(one.sizes) for one in sets)


@pytest.mark.parametrize(
    ("must_have", "text"),
    [([100], r"must_have sizes \[100\] are no candidates"), ([128, 256], "is less than 2")],
)
def test_must_haves_that_cannot_be_are_refused(must_have: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        best_covering_sizes(
            DEMAND,
            CANDIDATES,
            LaunchCosts(),
            max_num=1,
            prefix="exact",
            context_len=6144,
            must_have=must_have,
        )


@given(
    cached=st.integers(0, 4000),
    rows=st.integers(1, 3000),
    more=st.integers(0, 3000),
    prefix=st.sampled_from(["exact", "bucketed", "max"]),
)
def test_a_graph_reads_no_less_than_there_is_and_no_more_than_it_has_room_for(
    cached: int, rows: int, more: int, prefix: Prefix
) -> None:
    context = rows + cached + more

    read = float(graph_prefix(cached, rows, context, prefix))

    powers = [512 << i for i in range(10) if 512 << i < context]
    bucket = next(size for size in (0, *powers, context) if size >= cached)
    wanted = {"exact": cached, "bucketed": min(bucket, context - rows), "max": context - rows}
    assert read == wanted[prefix]
    assert cached <= read <= context - rows
