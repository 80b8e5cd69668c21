from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noria.kernels.contract import KVGroup, num_blocks_for
from noria.runtime.block_table import BlockCopy, BlockTable
from noria.runtime.errors import RequestError
from noria.runtime.kv_cache_manager import Donor, KVCacheManager


def group(num_blocks: int, block_size: int = 4, window: int | None = None) -> KVGroup:
    return KVGroup((0,), num_blocks, block_size, 1, 8, 8, torch.float32, window)


def manager(*groups: KVGroup, max_query_len: int = 64) -> KVCacheManager:
    return KVCacheManager(groups, max_query_len=max_query_len)


def run(cache: KVCacheManager, name: str, num_tokens: int) -> tuple[BlockCopy, ...]:
    """Grow to this many tokens and note that they were computed."""
    copies = cache.grow(name, num_tokens)
    assert copies is not None
    cache.commit(name, num_tokens)
    cache.trim(name)
    return copies


def test_blocks_come_with_real_tokens_not_with_the_promise():
    cache = manager(group(64, block_size=64))
    cache.admit("a", 1000)

    cache.grow("a", 100)

    assert cache.block_tables("a") == (BlockTable(0, (1, 2)),)
    assert cache.num_free_blocks == (61,)


@pytest.mark.parametrize("num_tokens", range(1, 15))
def test_d01_a_table_has_exactly_the_blocks_of_its_tokens(num_tokens):
    cache = manager(group(16))
    cache.admit("a", 14)

    for held in range(1, num_tokens + 1):
        run(cache, "a", held)

    assert len(cache.block_tables("a")[0].block_ids) == -(-num_tokens // 4)
    cache.check_invariants({"a": num_tokens})


def test_promised_blocks_go_to_nobody_else():
    cache = manager(group(8))
    assert cache.admit("a", 16)
    cache.grow("a", 1)
    before = cache.block_tables("a")

    assert not cache.admit("b", 13)
    assert cache.admit("c", 12)
    assert cache.grow("a", 17) is None, "beyond its promise there is no room"
    assert cache.grow("a", 16) == ()
    assert cache.grow("c", 12) == ()

    assert cache.num_free_blocks == (0,)
    assert cache.block_tables("a")[0].block_ids[:1] == before[0].block_ids


def test_a_promise_that_was_kept_leaves_nothing_owed():
    cache = manager(group(8))
    cache.admit("a", 16)
    run(cache, "a", 16)

    assert cache.admit("b", 12)


def test_spare_blocks_stay_free():
    cache = manager(group(8))

    assert not cache.admit("a", 21, num_spare_blocks=2)
    assert cache.admit("a", 20, num_spare_blocks=2)


def test_f03_growth_that_fails_changes_nothing():
    cache = manager(group(5), group(9, block_size=2))
    cache.admit("a", 8)
    run(cache, "a", 8)
    cache.admit("b", 5)
    run(cache, "b", 5)
    before = copy.deepcopy(cache.__dict__)

    assert cache.grow("a", 9) is None

    assert repr(cache._entries) == repr(before["_entries"])
    assert cache.num_free_blocks == (0, 1)
    cache.check_invariants({"a": 8, "b": 5})


def test_every_group_must_have_room_or_none_changes():
    cache = manager(group(9), group(3, block_size=2))

    assert not cache.admit("a", 5)
    assert cache.admit("b", 4)
    run(cache, "b", 3)

    assert [len(table.block_ids) for table in cache.block_tables("b")] == [1, 2]
    cache.check_invariants({"b": 3})


def test_request_beyond_the_pool_is_refused_with_all_numbers():
    cache = manager(group(5))

    cache.check_fits(16)
    with pytest.raises(RequestError, match=r"17 tokens.*5 blocks.*num_blocks 5 gives 4"):
        cache.check_fits(17)


def test_freeing_twice_or_before_any_block_is_harmless():
    cache = manager(group(5))
    cache.free("never-seen")
    cache.admit("a", 9)
    cache.grow("a", 9)

    cache.free("a")
    cache.free("a")

    cache.check_invariants({})
    assert cache.num_free_blocks == (4,)


def test_the_invariant_check_sees_a_table_that_is_too_long():
    cache = manager(group(9))
    cache.admit("a", 12)
    cache.commit("a", 8)
    cache.grow("a", 9)

    with pytest.raises(AssertionError, match="table length"):
        cache.check_invariants({"a": 8})


@given(
    window=st.integers(1, 12),
    block_size=st.integers(1, 5),
    chunk=st.integers(1, 9),
    num_tokens=st.integers(1, 50),
)
def test_blocks_outside_the_window_are_given_back_and_no_needed_one_is(
    window, block_size, chunk, num_tokens
):
    most = group(2, block_size, window).max_live_blocks(num_tokens, chunk)
    cache = manager(group(most + 1, block_size, window), max_query_len=chunk)
    cache.check_fits(num_tokens)
    assert cache.admit("a", num_tokens)

    for start in range(0, num_tokens, chunk):
        end = min(num_tokens, start + chunk)
        assert cache.grow("a", end) == ()
        (table,) = cache.block_tables("a")
        oldest_seen = max(0, start - window + 1)
        assert table.first_block == oldest_seen // block_size
        assert table.first_block + len(table.block_ids) == num_blocks_for(end, block_size)
        cache.commit("a", end)
        cache.trim("a")
        cache.check_invariants({"a": end})


def test_one_block_less_than_a_window_needs_is_too_few():
    cache = manager(group(3, block_size=2, window=4), max_query_len=1)

    with pytest.raises(RequestError, match="num_blocks 3 gives 2"):
        cache.check_fits(9)


def test_a_shared_block_is_copied_before_either_writes_and_the_last_owner_keeps_it():
    cache = manager(group(9))
    cache.admit("a", 7)
    run(cache, "a", 7)
    donor = Donor("a", 6)
    assert cache.can_lend(donor, 7)
    assert cache.admit("b", 7, donor=donor)
    assert cache.block_tables("b") == cache.block_tables("a")
    cache.check_invariants({"a": 7, "b": 6})

    assert run(cache, "b", 7) == (BlockCopy(0, source=2, destination=3),)
    assert run(cache, "a", 8) == ()

    assert [t.block_ids for t in (*cache.block_tables("a"), *cache.block_tables("b"))] == [
        (1, 2),
        (1, 3),
    ]
    cache.check_invariants({"a": 8, "b": 7})


def test_whole_blocks_are_shared_and_never_copied():
    cache = manager(group(9))
    cache.admit("a", 9)
    run(cache, "a", 9)

    cache.admit("b", 9, donor=Donor("a", 8))

    assert run(cache, "b", 9) == ()
    assert run(cache, "a", 12) == ()
    assert cache.num_free_blocks == (8 - 4,)


def test_the_copy_is_part_of_the_promise():
    cache = manager(group(4))
    cache.admit("a", 7)
    run(cache, "a", 7)
    assert cache.admit("b", 7, donor=Donor("a", 6))

    assert not cache.admit("c", 1), "the last free block is owed to b"
    assert cache.grow("a", 8) is None, "a would need a copy too"
    assert run(cache, "b", 7) != ()
    assert cache.grow("a", 8) == ()


def test_a_donor_lends_only_what_it_still_has_and_has_computed():
    cache = manager(group(9, block_size=2, window=3))
    cache.admit("a", 6)
    run(cache, "a", 4)

    assert not cache.can_lend(Donor("a", 3), 4), "it still has a promise, which sharing could break"
    cache.grow("a", 6)
    cache.commit("a", 6)
    assert cache.can_lend(Donor("a", 5), 6)
    cache.trim("a")
    assert not cache.can_lend(Donor("a", 5), 6), "the window has passed"


@given(
    windows=st.lists(st.sampled_from([None, 3, 8]), min_size=1, max_size=2),
    block_size=st.sampled_from([1, 2, 4]),
    max_query_len=st.integers(1, 8),
    num_shared=st.integers(1, 20),
    num_more=st.integers(1, 24),
)
def test_a_request_that_shares_blocks_can_grow_as_far_as_it_was_promised(
    windows, block_size, max_query_len, num_shared, num_more
):
    num_tokens, held = num_shared + num_more, {"a": num_shared + 1}
    for num_blocks in range(3, 100):  # up to the least that admits both
        groups = [group(num_blocks, block_size, window) for window in windows]
        cache = manager(*groups, max_query_len=max_query_len)
        if not cache.admit("a", held["a"]):
            continue
        for end in [*range(max_query_len, num_shared, max_query_len), num_shared, held["a"]]:
            run(cache, "a", end)
        donor = Donor("a", num_shared)
        if not cache.can_lend(donor, num_tokens):
            return
        if cache.admit("b", num_tokens, donor=donor):
            break

    for end in [*range(num_shared + max_query_len, num_tokens, max_query_len), num_tokens]:
        run(cache, "b", end)
        held["b"] = end
        cache.check_invariants(held)
