"""Writing keys and values into the block cache, and reading blocks of it.

An FP8 cache (``torch.float8_e4m3fn``) holds ``x / scale``, rounded to nearest with ties to even
from fp32, beyond the largest number as that number, infinities too; NaN stays NaN. What is read is
``scale * stored``. Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import PAD_SLOT_ID, AttentionSpec, check_cache_scales, check_slots, check_tensor
from .layers import wide

FP8 = torch.float8_e4m3fn


def write(
    k_RKD: Tensor,
    v_RKD: Tensor,
    k_cache_NBKD: Tensor,
    v_cache_NBKD: Tensor,
    slot_mapping_R: Tensor,
    *,
    spec: AttentionSpec,
) -> None:
    """Store each row at its slot; rows at slot -1 are dropped.

    Raises:
        ValueError: a shape differs, a slot is neither -1 nor in the cache, or the cache's dtype
            takes no scales.
    """
    num_blocks, block_size, num_kv_heads, k_dim = k_cache_NBKD.shape
    num_rows, v_dim = slot_mapping_R.shape[0], v_cache_NBKD.shape[3]
    check_tensor("k_new", k_RKD, (num_rows, num_kv_heads, k_dim))
    check_tensor("v_new", v_RKD, (num_rows, num_kv_heads, v_dim))
    check_tensor("v_cache", v_cache_NBKD, (num_blocks, block_size, num_kv_heads, v_dim))
    check_tensor("slot_mapping", slot_mapping_R, (num_rows,), torch.int32)
    check_slots(slot_mapping_R, num_blocks * block_size)  # plain indexing would wrap
    check_cache_scales(spec, k_cache_NBKD.dtype)
    is_real = slot_mapping_R != PAD_SLOT_ID
    slots = slot_mapping_R[is_real]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache_NBKD[blocks, offsets] = stored(k_RKD[is_real], k_cache_NBKD.dtype, spec.k_scale)
    v_cache_NBKD[blocks, offsets] = stored(v_RKD[is_real], v_cache_NBKD.dtype, spec.v_scale)


def stored(x: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return what a cache of this dtype holds for ``x``."""
    if dtype != FP8:
        return x.to(dtype)
    largest = torch.finfo(FP8).max
    return (x.to(wide(x.dtype)) / scale).clamp(-largest, largest).to(FP8)


def read_blocks(cache_NBKD: Tensor, block_R: Tensor, dtype: torch.dtype, scale: float) -> Tensor:
    """Return one block per row, ``[R, K, B, D]``, in the dtype that attention computes in."""
    blocks_RBKD = cache_NBKD[block_R].to(dtype)
    if cache_NBKD.dtype == FP8:
        blocks_RBKD = blocks_RBKD * scale
    return blocks_RBKD.transpose(1, 2)
