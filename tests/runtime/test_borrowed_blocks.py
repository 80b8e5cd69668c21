"""Blocks that are lent between steps, and are as free as before afterwards."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from noria.kernels.contract import KVGroup
from noria.runtime.kv_cache_manager import KVCacheManager

NUM_BLOCKS = (9, 6)


def manager() -> KVCacheManager:
    groups = [
        KVGroup((index,), num, 4, 2, 8, 8, torch.float32, window=8 if index else None)
        for index, num in enumerate(NUM_BLOCKS)
    ]
    return KVCacheManager(groups, max_query_len=8)


def order_of(kv_cache: KVCacheManager) -> list[list[int]]:
    """Return the free lists, the next block to be handed out first."""
    return [list(pool._free) for pool in kv_cache._pools]


@given(
    lengths=st.lists(st.integers(1, 16), max_size=3),
    freed=st.sets(st.integers(0, 2)),
    counts=st.tuples(st.integers(0, 8), st.integers(0, 5)),
)
def test_lent_blocks_are_free_ones_and_come_back_to_their_places(lengths, freed, counts) -> None:
    kv_cache, held = manager(), {}
    for index, length in enumerate(lengths):
        if kv_cache.admit(str(index), length) and kv_cache.grow(str(index), length) is not None:
            held[str(index)] = length
            kv_cache.commit(str(index), length)
            kv_cache.trim(str(index))
    for index in map(str, freed & set(range(len(lengths)))):
        kv_cache.free(index)
        held.pop(index, None)
    before, free = order_of(kv_cache), kv_cache.num_free_blocks

    with kv_cache.borrowed(counts) as lent:
        if lent is None:
            assert any(count > num for count, num in zip(counts, free, strict=True))
            assert order_of(kv_cache) == before
        else:
            assert tuple(map(len, lent)) == counts
            for ids, pool, left in zip(lent, before, order_of(kv_cache), strict=True):
                assert [*ids, *left] == pool

    assert order_of(kv_cache) == before
    kv_cache.check_invariants(held)


def test_what_fails_meanwhile_gives_the_blocks_back() -> None:
    kv_cache = manager()
    before = order_of(kv_cache)

    with pytest.raises(RuntimeError, match="broken"), kv_cache.borrowed((2, 2)):
        raise RuntimeError("broken")

    assert order_of(kv_cache) == before
    kv_cache.check_invariants({})
