"""Copies of blocks of the cache. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import check_tensor
from .native import Call
from .operators import Operator, TensorSpec, check_contiguous

_CHUNK_BYTES = 2**16


def _specs(
    k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor
) -> tuple[TensorSpec, ...]:
    num_blocks, block_size, num_kv_heads, _ = k_cache_NBKD.shape
    v_shape = (num_blocks, block_size, num_kv_heads, v_cache_NBKD.shape[3])
    check_tensor("v_cache", v_cache_NBKD, v_shape, k_cache_NBKD.dtype)
    check_tensor("src", src_M, (src_M.shape[0],), torch.int32)
    check_tensor("dst", dst_M, (src_M.shape[0],), torch.int32)
    check_contiguous(k_cache=k_cache_NBKD, v_cache=v_cache_NBKD, src=src_M, dst=dst_M)
    return ()


def _calls(_outs: tuple[Tensor, ...], *inputs: Tensor) -> list[Call]:
    *caches, src_M, dst_M = inputs
    return [_call(cache, src_M, dst_M) for cache in caches]


def _call(cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor) -> Call:
    num_blocks = cache_NBKD.shape[0]
    num_bytes = cache_NBKD.nbytes // num_blocks
    tasks = -(-num_bytes // _CHUNK_BYTES)
    sizes = (src_M.shape[0], num_blocks, num_bytes, _CHUNK_BYTES)
    return Call("copy_blocks", tasks, (cache_NBKD, src_M, dst_M, *sizes))


OPERATORS = (
    Operator(
        "copy_blocks",
        "(Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor src, Tensor dst) -> ()",
        _specs,
        _calls,
    ),
)
