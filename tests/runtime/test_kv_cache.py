"""How many blocks there are: what full use needs, within memory and int32 slots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from noria.kernels.contract import KVGroup
from noria.runtime import kv_cache
from noria.runtime.errors import ConfigError
from noria.runtime.kv_cache import CacheSize, check_memory, size_cache

FREE = 100_000


@pytest.fixture(autouse=True)
def free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_cache, "free_memory_bytes", lambda: FREE)


def size_of(
    groups: Sequence[KVGroup],
    *,
    max_num_seqs: int = 1,
    max_model_len: int = 100,
    max_query_len: int = 100,
    memory_bytes: int | None = None,
) -> CacheSize:
    return size_cache(
        groups,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_query_len=max_query_len,
        memory_bytes=memory_bytes,
    )


def group_of(block_bytes: int, block_size: int = 16) -> KVGroup:
    """Return a group whose blocks take this many bytes: keys and values of 1 byte each."""
    half = block_bytes // block_size // 2
    return KVGroup((0,), 2, block_size, 1, k_dim=half, v_dim=half, dtype=torch.int8)


def test_full_use_of_every_request_and_the_null_block_is_enough() -> None:
    size = size_of([group_of(32)], max_num_seqs=4)

    assert size == CacheSize((4 * 7 + 1,), "4 requests of 100 tokens")


@pytest.mark.parametrize(
    ("memory_bytes", "num_blocks", "reason"),
    [(32 * 20, 20, "kv_cache_memory, 640 bytes"), (None, 1562, "50% of free memory, 50,000 bytes")],
)
def test_memory_limits_the_pool_and_is_the_reason(
    memory_bytes: int | None, num_blocks: int, reason: str
) -> None:
    size = size_of([group_of(32)], max_num_seqs=999, memory_bytes=memory_bytes)

    assert size == CacheSize((num_blocks,), reason)


def test_slots_stay_int32_however_much_memory_there_is() -> None:
    groups = [group_of(32)]
    size = size_of(groups, max_num_seqs=2**30, max_model_len=2**20, memory_bytes=2**62)

    assert size == CacheSize(((2**31 - 1) // 16,), "slots are int32")


@pytest.mark.parametrize(
    ("max_model_len", "memory_bytes", "why"),
    [(100, 32 * 7, r"7 blocks of 32 bytes \(kv_cache_memory"), (2**31 - 1, 2**62, "int32")],
)
def test_a_pool_that_cannot_hold_one_request_is_refused(
    max_model_len: int, memory_bytes: int, why: str
) -> None:
    with pytest.raises(ConfigError, match=rf"num_blocks: auto.*{why}.*lower max_model_len"):
        size_of([group_of(32)], max_model_len=max_model_len, memory_bytes=memory_bytes)


def test_a_cache_beyond_free_memory_is_refused_with_both_numbers() -> None:
    check_memory(CacheSize((FREE // 32,), "as configured"), [group_of(32)])

    with pytest.raises(ConfigError) as caught:
        check_memory(CacheSize((FREE // 32 + 1,), "as configured"), [group_of(32)])

    assert str(caught.value) == (
        "num_blocks: 3126 (as configured) makes a KV cache of 100,032 bytes, 32 a block; "
        "100,000 bytes of memory are free"
    )


def test_a_group_with_a_window_holds_what_the_longest_step_can_see() -> None:
    groups = [group_of(32), replace(group_of(32), window=20)]

    size = size_of(groups, max_num_seqs=3, max_query_len=32)

    # 20 - 1 tokens before the step and 32 in it: 51 tokens touch at most 5 blocks of 16.
    assert size.num_blocks == (3 * 7 + 1, 3 * 5 + 1)


def test_memory_is_shared_so_that_every_group_holds_as_many_requests() -> None:
    groups = [group_of(32), replace(group_of(64), window=20)]

    size = size_of(groups, max_num_seqs=999, max_query_len=32, memory_bytes=96 + 4 * 544)

    assert size.num_blocks == (1 + 4 * 7, 1 + 4 * 5)
