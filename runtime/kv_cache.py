"""Storage of keys and values: how many blocks there are, and their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .errors import ConfigError
from .models.architecture import Architecture
from .process_limits import free_memory_bytes
from .settings import MAX_INT32

MIN_NUM_BLOCKS = 2
"""The null block and one more."""
AUTO_MEMORY_SHARE = 0.5
"""Share of the memory free after loading the weights that `num_blocks: auto` may take."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The number of blocks of each group, and how they were found."""

    num_blocks: tuple[int, ...]
    reason: str


def size_cache(
    groups: Sequence[KVGroup],
    *,
    max_num_seqs: int,
    max_model_len: int,
    max_query_len: int,
    memory_bytes: int | None,
    reserved_bytes: int = 0,
) -> CacheSize:
    """Resolve ``num_blocks: auto`` once: what full use needs, within the memory and int32 slots.

    Args:
        groups: the KV groups; their ``num_blocks`` is ignored.
        max_num_seqs: requests that run at the same time.
        max_model_len: tokens per request at most.
        max_query_len: tokens of a request in one step at most.
        memory_bytes: ``kv_cache_memory``; None means half of the memory that is free now.
        reserved_bytes: what of the free memory is spoken for: weights that are not read yet.

    Raises:
        ConfigError: one request of ``max_model_len`` tokens does not fit.
    """
    per_request = [group.max_live_blocks(max_model_len, max_query_len) for group in groups]
    full_use = f"{max_num_seqs} requests of {max_model_len} tokens"
    wanted = CacheSize(tuple(max_num_seqs * need + 1 for need in per_request), full_use)
    slots = CacheSize(tuple(MAX_INT32 // group.block_size for group in groups), "slots are int32")
    source = "kv_cache_memory"
    if memory_bytes is None:
        memory_bytes = int((free_memory_bytes() - reserved_bytes) * AUTO_MEMORY_SHARE)
        source = f"{AUTO_MEMORY_SHARE:.0%} of free memory"
    reason = f"{source}, {memory_bytes:,} bytes"
    in_memory = CacheSize(_share_out(groups, per_request, memory_bytes), reason)
    size = min(wanted, in_memory, slots, key=lambda size: size.num_blocks[0])
    for group, num_blocks, need in zip(groups, size.num_blocks, per_request, strict=True):
        if num_blocks < need + 1:
            raise ConfigError(
                f"num_blocks: auto finds place for {num_blocks} blocks of {group.block_bytes:,} "
                f"bytes ({size.reason}); one request of max_model_len {max_model_len} needs "
                f"{need} and the null block: lower max_model_len or give more memory"
            )
    return size


def check_memory(size: CacheSize, groups: Sequence[KVGroup], reserved_bytes: int = 0) -> None:
    """Refuse a cache that is larger than the memory that is free now, less what is reserved.

    Raises:
        ConfigError: it does not fit; the text says how many bytes are needed and free.
    """
    sizes = zip(groups, size.num_blocks, strict=True)
    needed = sum(num_blocks * group.block_bytes for group, num_blocks in sizes)
    free = max(0, free_memory_bytes() - reserved_bytes)
    if needed > free:
        listed = " + ".join(map(str, size.num_blocks))
        block_bytes = " and ".join(f"{group.block_bytes:,}" for group in groups)
        raise ConfigError(
            f"num_blocks: {listed} ({size.reason}) makes a KV cache of {needed:,} bytes, "
            f"{block_bytes} a block; {free:,} bytes of memory are free"
        )


def _share_out(
    groups: Sequence[KVGroup], per_request: Sequence[int], memory_bytes: int
) -> tuple[int, ...]:
    """Return blocks by which every group holds as many requests; the null blocks come first."""
    left = memory_bytes - sum(group.block_bytes for group in groups)
    pairs = zip(groups, per_request, strict=True)
    request_bytes = sum(group.block_bytes * need for group, need in pairs)
    return tuple(1 + max(0, left) * need // request_bytes for need in per_request)


class KVCache:
    """Key and value tensors per layer, zero at start, and their groups."""

    def __init__(self, groups: Sequence[KVGroup], kernels: KernelSet) -> None:
        """Allocate the caches of all groups in the memory of the target."""
        num_layers = sum(len(group.layers) for group in groups)
        self.groups = tuple(groups)
        self.group_of = [0] * num_layers
        self.keys: list[Tensor] = [torch.empty(0)] * num_layers
        self.values: list[Tensor] = [torch.empty(0)] * num_layers
        for index, group in enumerate(groups):
            for layer in group.layers:
                self.group_of[layer] = index
                self.keys[layer] = kernels.zeros(group.k_shape, group.dtype)
                self.values[layer] = kernels.zeros(group.v_shape, group.dtype)

    @property
    def num_bytes(self) -> int:
        """Bytes of all keys and values."""
        return sum(group.num_blocks * group.block_bytes for group in self.groups)

    def clear_blocks(self, block_ids: Sequence[Sequence[int]]) -> None:
        """Set blocks of each group back to zero, in every layer of it."""
        for group, ids in zip(self.groups, block_ids, strict=True):
            for layer in group.layers:
                for cache in (self.keys[layer], self.values[layer]):
                    # A copy from the host: on a device, arithmetic here would be compiled.
                    zeros = torch.zeros(cache.shape[1:], dtype=cache.dtype)
                    for block in ids:
                        cache[block].copy_(zeros)


def sized(groups: Sequence[KVGroup], size: CacheSize) -> tuple[KVGroup, ...]:
    """Return the groups with their numbers of blocks."""
    sizes = zip(groups, size.num_blocks, strict=True)
    return tuple(replace(group, num_blocks=num_blocks) for group, num_blocks in sizes)


def decoder_groups(
    architecture: Architecture, *, block_size: int, dtype: torch.dtype
) -> tuple[KVGroup, ...]:
    """Return the KV groups of a decoder: one per distinct window, in order of first layer.

    Their numbers of blocks are still to be found, see ``sized``.
    """
    windows = dict.fromkeys(kind.window for kind in architecture.layers)
    return tuple(
        KVGroup(
            layers=tuple(i for i, kind in enumerate(architecture.layers) if kind.window == window),
            num_blocks=MIN_NUM_BLOCKS,
            block_size=block_size,
            num_kv_heads=architecture.num_kv_heads,
            k_dim=architecture.head_dim,
            v_dim=architecture.head_dim,
            dtype=dtype,
            window=window,
        )
        for window in windows
    )
