"""Copies of blocks of the cache. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

from torch import Tensor

from ..contract import NULL_BLOCK_ID, PAD_BLOCK_ID, check_tensor


def copy_blocks(k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor) -> None:
    """Copy block ``src[i]`` of both caches to ``dst[i]``; src -1 skips.

    Raises:
        ValueError: a block is outside the cache, or a destination is the null block, is named
            twice or is a source as well: targets may copy in any order.
    """
    check_tensor("dst", dst_M, tuple(src_M.shape), src_M.dtype)
    is_copied = src_M != PAD_BLOCK_ID
    src, dst = src_M[is_copied].tolist(), dst_M[is_copied].tolist()
    num_blocks = k_cache_NBKD.shape[0]
    for block in (*src, *dst):
        if not 0 <= block < num_blocks:
            raise ValueError(f"block {block} is not one of {num_blocks}")
    if NULL_BLOCK_ID in dst:
        raise ValueError(f"block {NULL_BLOCK_ID} is the null block, and is never written")
    if len({*dst, *src}) != len(dst) + len({*src}):
        raise ValueError(f"blocks {dst} are copied to twice, or from as well")
    for cache in (k_cache_NBKD, v_cache_NBKD):
        cache[dst] = cache[src]
