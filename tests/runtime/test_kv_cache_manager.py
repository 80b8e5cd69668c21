from __future__ import annotations

import copy

import pytest
import torch

from noria.kernels.contract import KVGroup
from noria.runtime.errors import RequestError
from noria.runtime.kv_cache_manager import KVCacheManager


def group(num_blocks: int, block_size: int = 4) -> KVGroup:
    return KVGroup((0,), num_blocks, block_size, 1, 8, 8, torch.float32)


def test_blocks_come_with_real_tokens_not_with_the_reservation():
    manager = KVCacheManager([group(64, block_size=64)])
    manager.reserve("a", 1000)

    manager.grow("a", 100)

    assert len(manager.block_tables("a")[0]) == 2
    assert manager.num_free_blocks == (61,)


@pytest.mark.parametrize("num_tokens", range(1, 15))
def test_d01_a_table_has_exactly_the_blocks_of_its_tokens(num_tokens):
    manager = KVCacheManager([group(16)])
    manager.reserve("a", 14)

    for held in range(1, num_tokens + 1):
        manager.grow("a", held)

    assert len(manager.block_tables("a")[0]) == -(-num_tokens // 4)
    manager.check_invariants({"a": num_tokens})


def test_blocks_owed_to_running_requests_cannot_be_reserved():
    manager = KVCacheManager([group(8)])
    assert manager.reserve("a", 16)
    manager.grow("a", 1)
    before = copy.deepcopy(manager.block_tables("a"))

    assert not manager.reserve("b", 13)
    assert manager.reserve("c", 12)
    manager.grow("a", 16)
    manager.grow("c", 12)

    assert manager.num_free_blocks == (0,)
    assert manager.block_tables("a")[0][:1] == before[0]


def test_every_group_must_have_room_or_none_changes():
    manager = KVCacheManager([group(9), group(3, block_size=2)])

    assert not manager.reserve("a", 5)
    assert manager.reserve("b", 4)
    manager.grow("b", 3)

    assert [len(table) for table in manager.block_tables("b")] == [1, 2]
    manager.check_invariants({"b": 3})


def test_request_beyond_the_pool_is_refused_with_all_numbers():
    manager = KVCacheManager([group(5)])

    manager.check_fits(16)
    with pytest.raises(RequestError, match=r"17 tokens.*5 blocks.*num_blocks 5 gives 4"):
        manager.check_fits(17)


def test_freeing_twice_or_before_any_block_is_harmless():
    manager = KVCacheManager([group(5)])
    manager.free("never-seen")
    manager.reserve("a", 9)
    manager.grow("a", 9)

    manager.free("a")
    manager.free("a")

    manager.check_invariants({})
    assert manager.num_free_blocks == (4,)


def test_growing_beyond_the_reservation_is_our_own_mistake():
    manager = KVCacheManager([group(5)])
    manager.reserve("a", 4)

    with pytest.raises(AssertionError, match="exceeds its reservation"):
        manager.grow("a", 5)


def test_the_invariant_check_sees_a_table_that_is_too_long():
    manager = KVCacheManager([group(9)])
    manager.reserve("a", 12)
    manager.grow("a", 9)

    with pytest.raises(AssertionError, match="table length"):
        manager.check_invariants({"a": 8})
