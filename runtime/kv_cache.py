"""Storage of keys and values: how many blocks there are, and their tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kernels.contract import KVGroup, num_blocks_for
from ..kernels.kernel_set import KernelSet
from .errors import ConfigError
from .models.architecture import Architecture
from .process_limits import free_memory_bytes
from .settings import MAX_INT32

AUTO_MEMORY_SHARE = 0.5
"""Share of the memory free after loading the weights that `num_blocks: auto` may take."""


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The number of blocks of every group, and how it was found."""

    num_blocks: int
    reason: str


def size_cache(
    group: KVGroup, *, max_num_seqs: int, max_model_len: int, memory_bytes: int | None
) -> CacheSize:
    """Resolve ``num_blocks: auto`` once: what full use needs, within the memory and int32 slots.

    Args:
        group: the KV group; its ``num_blocks`` is ignored.
        max_num_seqs: requests that run at the same time.
        max_model_len: tokens per request at most.
        memory_bytes: ``kv_cache_memory``; None means half of the memory that is free now.

    Raises:
        ConfigError: one request of ``max_model_len`` tokens does not fit.
    """
    per_request = num_blocks_for(max_model_len, group.block_size)
    full_use = f"{max_num_seqs} requests of {max_model_len} tokens"
    wanted = CacheSize(max_num_seqs * per_request + 1, full_use)
    slots = CacheSize(MAX_INT32 // group.block_size, "slots are int32")
    size = min(wanted, _size_in_memory(group, memory_bytes), slots, key=lambda s: s.num_blocks)
    if size.num_blocks < per_request + 1:
        raise ConfigError(
            f"num_blocks: auto finds place for {size.num_blocks} blocks of {group.block_bytes:,} "
            f"bytes ({size.reason}); one request of max_model_len {max_model_len} needs "
            f"{per_request} and the null block: lower max_model_len or give more memory"
        )
    return size


def check_memory(size: CacheSize, group: KVGroup) -> None:
    """Refuse a cache that is larger than the memory that is free now.

    Raises:
        ConfigError: it does not fit; the text says how many bytes are needed and free.
    """
    needed, free = size.num_blocks * group.block_bytes, free_memory_bytes()
    if needed > free:
        raise ConfigError(
            f"num_blocks: {size.num_blocks} ({size.reason}) makes a KV cache of {needed:,} bytes, "
            f"{group.block_bytes:,} a block; {free:,} bytes of memory are free"
        )


def _size_in_memory(group: KVGroup, memory_bytes: int | None) -> CacheSize:
    source = "kv_cache_memory"
    if memory_bytes is None:
        memory_bytes = int(free_memory_bytes() * AUTO_MEMORY_SHARE)
        source = f"{AUTO_MEMORY_SHARE:.0%} of free memory"
    return CacheSize(memory_bytes // group.block_bytes, f"{source}, {memory_bytes:,} bytes")


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

    def clear_blocks(self, block_ids: Sequence[int]) -> None:
        """Set blocks back to zero in every layer."""
        for cache in (*self.keys, *self.values):
            cache[list(block_ids)] = 0


def decoder_groups(
    architecture: Architecture, *, num_blocks: int, block_size: int, dtype: torch.dtype
) -> tuple[KVGroup, ...]:
    """Return the KV groups of a decoder: one per distinct window, in order of first layer."""
    windows = dict.fromkeys(kind.window for kind in architecture.layers)
    return tuple(
        KVGroup(
            layers=tuple(i for i, kind in enumerate(architecture.layers) if kind.window == window),
            num_blocks=num_blocks,
            block_size=block_size,
            num_kv_heads=architecture.num_kv_heads,
            k_dim=architecture.head_dim,
            v_dim=architecture.head_dim,
            dtype=dtype,
            window=window,
        )
        for window in windows
    )
