"""Layouts, sentinels and shape checks that every kernel target and the runtime share.

Owns what the numbers in a graph's inputs mean. It knows tensors, never requests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch

PAD_SLOT_ID = -1
"""Slot of a padded token: its keys and values are written nowhere."""

PAD_BLOCK_ID = -1
"""Block table entry that is not read."""

NULL_BLOCK_ID = 0
"""Block that the pool never hands out; the host's mark of an unused table entry."""

EXPERT_ACTIVATIONS = ("silu",)
"""What the MLPs of experts may apply to their gate."""

IntArray = TypeVar("IntArray", torch.Tensor, npt.NDArray[np.int32])


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What is fixed about the attention of one layer.

    Attributes:
        scale: factor of the scores.
        softcap: bound of the scaled scores, which become ``softcap * tanh(score / softcap)``.
        window: how many tokens a query sees, its own included; None is all before it.
        k_scale: what stored keys are multiplied by when they are read; the cache holds
            ``k / k_scale``. 1 unless the cache is FP8.
        v_scale: the same for values.
    """

    scale: float
    softcap: float | None = None
    window: int | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0

    def __post_init__(self) -> None:
        """Raise ValueError where a value can mean nothing."""
        if self.window is not None and self.window < 1:
            raise ValueError(f"window is {self.window}, a query sees at least 1 token, its own")
        named = {"softcap": self.softcap, "k_scale": self.k_scale, "v_scale": self.v_scale}
        for name, value in named.items():
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name} is {value}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block pool, one block table and one slot mapping.

    Keys and values of a layer are tensors ``[num_blocks, block_size, num_kv_heads, dim]``;
    ``slot = block_id * block_size + position % block_size``.
    """

    layers: tuple[int, ...]
    num_blocks: int
    block_size: int
    num_kv_heads: int
    k_dim: int
    v_dim: int
    dtype: torch.dtype
    window: int | None = None
    layout: str = "NBKD"

    @property
    def k_shape(self) -> tuple[int, int, int, int]:
        """Shape of one layer's key cache."""
        return (self.num_blocks, self.block_size, self.num_kv_heads, self.k_dim)

    @property
    def v_shape(self) -> tuple[int, int, int, int]:
        """Shape of one layer's value cache."""
        return (self.num_blocks, self.block_size, self.num_kv_heads, self.v_dim)

    @property
    def block_bytes(self) -> int:
        """Bytes that one block takes over all layers of the group."""
        row = self.num_kv_heads * (self.k_dim + self.v_dim) * self.dtype.itemsize
        return len(self.layers) * self.block_size * row

    def first_live_block(self, num_computed_tokens: int) -> int:
        """Return the logical block of the oldest key that the next token sees.

        Blocks before it are never read again.
        """
        if self.window is None:
            return 0
        return max(0, num_computed_tokens + 1 - self.window) // self.block_size

    def max_live_blocks(self, num_tokens: int, query_len: int) -> int:
        """Return the most blocks that a request holds on its way to ``num_tokens`` tokens.

        Args:
            num_tokens: prompt and output.
            query_len: most tokens of the request in one step.
        """
        return blocks_in_reach(num_tokens, self.block_size, self.window, query_len)


def blocks_in_reach(context_len: int, block_size: int, window: int | None, query_len: int) -> int:
    """Return the most blocks that ``query_len`` tokens see, their own included.

    With a window they see ``window - 1`` tokens before the first of them; wherever in a block
    that begins, one block more than those tokens fill holds them.
    """
    blocks = num_blocks_for(context_len, block_size)
    if window is None:
        return blocks
    return min(blocks, 1 + num_blocks_for(window + query_len - 2, block_size))


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """Return how many blocks hold ``num_tokens`` tokens."""
    return -(-num_tokens // block_size)


def table_width(
    context_len: int,
    *,
    block_size: int,
    fold_blocks: int = 1,
    window: int | None = None,
    query_len: int = 1,
) -> int:
    """Return the number of block table columns for a context bucket.

    Args:
        context_len: most tokens of one request.
        block_size: tokens of a block.
        fold_blocks: how many blocks a target gathers at once (1 on the CPU, 128 on NKI): the
            width is a whole number of such folds, the surplus padded with PAD_BLOCK_ID.
        window: of the KV group; a table then holds only the blocks that a step can see.
        query_len: most tokens of one request in a step.
    """
    blocks = blocks_in_reach(context_len, block_size, window, query_len)
    return -(-blocks // fold_blocks) * fold_blocks


def compute_slots(block_ids: IntArray, positions: IntArray, block_size: int) -> IntArray:
    """Return the cache slot of each position of one request.

    Args:
        block_ids: int ``[blocks]``, the request's blocks in logical order, before any remap.
        positions: int ``[tokens]``, positions in the request.
        block_size: tokens per block.

    Takes and returns torch tensors or numpy arrays.
    """
    return block_ids[positions // block_size] * block_size + positions % block_size


def remap_null_block(block_table: torch.Tensor) -> torch.Tensor:
    """Return a copy of the table in which the null block is PAD_BLOCK_ID."""
    return torch.where(block_table == NULL_BLOCK_ID, PAD_BLOCK_ID, block_table)


def check_tensor(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None
) -> None:
    """Raise ValueError unless the tensor has exactly this shape (and dtype, if given)."""
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {shape}")
    if dtype is not None and tensor.dtype != dtype:
        raise ValueError(f"{name} has dtype {tensor.dtype}, expected {dtype}")


def check_cache_scales(spec: AttentionSpec, dtype: torch.dtype) -> None:
    """Raise ValueError if a cache that is not FP8 comes with scales: it holds plain values."""
    if dtype == torch.float8_e4m3fn or spec.k_scale == spec.v_scale == 1:
        return
    raise ValueError(
        f"k_scale is {spec.k_scale} and v_scale {spec.v_scale}, a cache of {dtype} expects 1"
    )


def check_top_k(top_k: int, num_experts: int) -> None:
    """Raise ValueError unless a row can have so many experts."""
    if not 0 < top_k <= num_experts:
        raise ValueError(f"top_k is {top_k}, expected 1 to {num_experts} experts")


def check_expert_weights(
    gate_up_X2FE: torch.Tensor, down_XEF: torch.Tensor, activation: str
) -> None:
    """Raise ValueError unless these are the weights of expert MLPs with a known activation."""
    num_experts, hidden_size, inner_size = down_XEF.shape
    shape = (num_experts, 2 * inner_size, hidden_size)
    check_tensor("gate_up", gate_up_X2FE, shape, down_XEF.dtype)
    if activation not in EXPERT_ACTIVATIONS:
        known = ", ".join(EXPERT_ACTIVATIONS)
        raise ValueError(f"experts have the activation {activation!r}, expected {known}")


def check_rotated_dims(num_rotated: int, head_dim: int) -> None:
    """Raise ValueError unless rope can rotate so many dims of a head by halves."""
    if num_rotated % 2 or not 0 < num_rotated <= head_dim:
        raise ValueError(
            f"cos_sin rotates {num_rotated} dims, expected an even number up to head dim {head_dim}"
        )


def check_slots(slot_mapping: torch.Tensor, num_slots: int) -> None:
    """Raise ValueError unless every slot is PAD_SLOT_ID or in a cache of ``num_slots`` slots.

    Other negative slots are the trace of a table that was remapped before slots came from it.
    """
    slots = slot_mapping[slot_mapping != PAD_SLOT_ID]
    is_in_cache = (slots >= 0) & (slots < num_slots)
    if not is_in_cache.all():
        first = int(slots[~is_in_cache][0])
        raise ValueError(f"slot {first} is outside a cache of {num_slots} slots")
