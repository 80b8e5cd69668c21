"""Covering: a step fills the chunk that a table names for the rows that wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import CoverPolicy, FillPolicy, packed_len

TABLES = st.lists(st.integers(1, 64), min_size=1, max_size=200).map(lambda chunks: [0, *chunks])
PROMPTS = st.lists(st.integers(1, 90), min_size=1, max_size=12)


@given(TABLES, PROMPTS, st.sampled_from([1, 4, 16]), st.integers(1, 14))
def test_a_step_takes_the_named_chunk_of_the_head_in_order(
    table: list[int], waiting: list[int], tile: int, max_num_seqs: int
) -> None:
    taken = CoverPolicy(table, 64, max_num_seqs, tile).pack(waiting)

    head = waiting[:max_num_seqs]
    chunk = table[min(packed_len(head, tile), len(table) - 1)]
    assert taken == FillPolicy(chunk, max_num_seqs, tile).pack(waiting)
    assert all(count >= 1 for count in taken)
    assert list(taken[:-1]) == waiting[: len(taken) - 1]
    assert 0 < packed_len(taken, tile) <= chunk <= 64
    assert len(taken) <= max_num_seqs


@given(st.data(), PROMPTS, st.sampled_from([1, 4, 16]))
def test_without_arrivals_all_rows_are_run_in_the_chunks_of_the_table(
    data: st.DataObject, waiting: list[int], tile: int
) -> None:
    chunks = st.integers(1, 6).map(lambda tiles: tiles * tile)
    most = packed_len(waiting, tile)
    table = [0, *data.draw(st.lists(chunks, min_size=most, max_size=most))]
    policy = CoverPolicy(table, 6 * tile, len(waiting), tile)
    expected, rows = [], most
    while rows > 0:
        expected.append(min(table[rows], rows))
        rows -= table[rows]

    found = []
    while waiting:
        taken = policy.pack(waiting)
        left = [whole - count for whole, count in zip(waiting, taken, strict=False)]
        rest = [one for one in left if one] + waiting[len(taken) :]
        found.append(packed_len(waiting, tile) - packed_len(rest, tile))
        waiting = rest

    assert found == expected


def test_one_table_for_all_fills_as_the_largest_bucket_does() -> None:
    cover, fill = CoverPolicy([0, 512], 512, 8, 128), FillPolicy(512, 8, 128)

    assert cover.pack([200, 300, 20]) == fill.pack([200, 300, 20]) == (200, 256)


def test_more_rows_than_the_table_has_take_its_last_chunk() -> None:
    policy = CoverPolicy([0, 8, 8, 2], 8, 8)

    assert [policy.pack([rows]) for rows in (1, 2, 3, 4, 99)] == [(1,), (2,), (2,), (2,), (2,)]


def test_who_has_no_row_in_a_step_does_not_wait_yet() -> None:
    policy = CoverPolicy([0, 3, 1, 2, 3], 4, max_num_seqs=2)

    assert policy.pack([1, 1, 1, 1]) == (1,)


@pytest.mark.parametrize(
    ("table", "max_num_tokens"), [([0, 2, 2, 2, 2], 2), ([0, 4], 4)], ids=["table", "bucket"]
)
def test_the_queue_is_read_as_far_as_the_table_and_the_bucket_go(
    table: list[int], max_num_tokens: int
) -> None:
    queue: Iterator[int] = iter([2, 2, 6, 7])

    CoverPolicy(table, max_num_tokens, 8).pack(queue)

    assert list(queue) == [6, 7]


def test_nothing_is_packed_only_if_nothing_waits() -> None:
    assert CoverPolicy([0, 4], 4, 8).pack([]) == ()
    assert CoverPolicy([0, 4], 4, 8).pack([9]) == (4,)


def test_changes_are_a_table() -> None:
    policy = CoverPolicy.of_changes([(1, 4), (3, 2), (6, 8)], 8, max_num_seqs=3, prefill_tile=2)

    assert policy == CoverPolicy([0, 4, 4, 2, 2, 2, 8], 8, 3, 2)


@pytest.mark.parametrize("changes", [[], [(2, 4)], [(1, 4), (1, 8)], [(1, 4), (5, 8), (3, 4)]])
def test_changes_must_increase_from_one_row_on(changes: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="rows must increase from 1 on"):
        CoverPolicy.of_changes(changes, 8, max_num_seqs=8)


@pytest.mark.parametrize("table", [[], [0]])
def test_a_table_names_a_chunk(table: list[int]) -> None:
    with pytest.raises(ValueError, match="first_chunk must name a chunk"):
        CoverPolicy(table, 8, 8)


def test_chunks_fit_the_largest_bucket() -> None:
    with pytest.raises(ValueError, match="chunk 9 is above max_num_tokens 8"):
        CoverPolicy([0, 8, 9], 8, 8)


@pytest.mark.parametrize("bad", [0, -1, True])
def test_limits_chunks_and_lengths_must_be_positive_integers(bad: int) -> None:
    with pytest.raises(ValueError, match="max_num_tokens must be a positive integer"):
        CoverPolicy([0, 8], bad, 8)
    with pytest.raises(ValueError, match="max_num_seqs must be a positive integer"):
        CoverPolicy([0, 8], 8, bad)
    with pytest.raises(ValueError, match="prefill_tile must be a positive integer"):
        CoverPolicy([0, 8], 8, 8, bad)
    with pytest.raises(ValueError, match="chunk must be a positive integer"):
        CoverPolicy([0, 8, bad], 8, 8)
    with pytest.raises(ValueError, match="waiting prompt length must be a positive integer"):
        CoverPolicy([0, 8], 8, 8).pack([bad])
