"""Attention over the block cache: write by slot, then attend from the cache only.

Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract import AttentionSpec, check_cache_scales, check_tensor
from .native import Call
from .operators import (
    FP8,
    Operator,
    TensorSpec,
    check_contiguous,
    check_dense,
    check_dtype,
    kernel_name,
    row_chunks,
)

_TILE_TOKENS = 32
_TILE_VECTORS = 64
_MANY_TILES = 8
"""With so many tiles of rows a task takes all heads: their keys lie side by side in memory."""


def tile_tokens(block_size: int) -> int:
    """Return the tokens of a key tile: whole blocks, about 32 tokens, never less than a block."""
    return block_size * max(1, _TILE_TOKENS // block_size)


def spec_args(spec: AttentionSpec) -> tuple[float, float | None, int | None, float, float]:
    """Return what a spec says in the order of the operators' schemas."""
    return (spec.scale, spec.softcap, spec.window, spec.k_scale, spec.v_scale)


@dataclass(frozen=True, slots=True)
class _Step:
    """The inputs of both operators in the order of their schemas; prefill alone has the last."""

    q: Tensor
    k: Tensor
    v: Tensor
    k_cache: Tensor
    v_cache: Tensor
    slots: Tensor
    table: Tensor
    context_lens: Tensor
    query_lens: Tensor
    block_offset: Tensor | None
    scale: float
    softcap: float | None
    window: int | None
    k_scale: float
    v_scale: float
    query_start_loc: Tensor | None = None

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.scale, self.softcap, self.window, self.k_scale, self.v_scale)


def _check_cache(step: _Step) -> None:
    q, k, v, k_cache, v_cache = step.q, step.k, step.v, step.k_cache, step.v_cache
    num_rows, num_heads, dim = q.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    check_dtype("q", q)
    check_tensor("k_new", k, (num_rows, num_kv_heads, dim), q.dtype)
    check_tensor("v_new", v, (num_rows, num_kv_heads, dim), q.dtype)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        stored = FP8 if k_cache.dtype == FP8 else q.dtype
        check_tensor(name, cache, (num_blocks, block_size, num_kv_heads, dim), stored)
    check_cache_scales(step.spec, k_cache.dtype)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} key/value heads")
    if dim % 8:
        raise ValueError(f"q has head dim {dim}, expected a multiple of 8")
    for name, tensor in (("q", q), ("k_new", k), ("v_new", v)):
        check_dense(name, tensor, 2)
    check_contiguous(k_cache=k_cache, v_cache=v_cache)


def _check_requests(step: _Step) -> None:
    num_rows, (num_requests,) = step.q.shape[0], step.context_lens.shape
    slots, table, starts = step.slots, step.table, step.query_start_loc
    check_tensor("slot_mapping", slots, (num_rows,), torch.int32)
    check_tensor("block_table", table, (num_requests, table.shape[1]), torch.int32)
    check_tensor("context_lens", step.context_lens, (num_requests,), torch.int32)
    check_tensor("query_lens", step.query_lens, (num_requests,), torch.int32)
    check_contiguous(slots=slots, table=table)
    check_contiguous(context_lens=step.context_lens, query_lens=step.query_lens)
    if step.block_offset is not None:
        check_tensor("block_offset", step.block_offset, (num_requests,), torch.int32)
        check_contiguous(block_offset=step.block_offset)
    if starts is not None:
        check_tensor("query_start_loc", starts, (num_requests + 1,), torch.int32)
        check_contiguous(query_start_loc=starts)
    elif num_requests == 0 or num_rows % num_requests:
        raise ValueError(f"{num_rows} rows do not divide among {num_requests} requests")


def _specs(*inputs: Any) -> tuple[TensorSpec, ...]:
    step = _Step(*inputs)
    _check_cache(step)
    _check_requests(step)
    num_rows, num_heads, dim = step.q.shape
    return (TensorSpec((num_rows, num_heads * dim), step.q.dtype),)


def _calls(outs: tuple[Tensor, ...], *inputs: Any) -> list[Call]:
    step = _Step(*inputs)
    return [_write_call(step), _attend_call(step, outs[0])]


def _write_call(step: _Step) -> Call:
    k, v, k_cache = step.k, step.v, step.k_cache
    num_rows, num_kv_heads, dim = k.shape
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    tasks, rows = row_chunks(num_rows, 2 * num_kv_heads * dim)
    sizes = (num_rows, k.stride(0), v.stride(0), num_kv_heads * dim, num_slots, rows)
    scales = (float(step.k_scale), float(step.v_scale))
    args = (k, v, k_cache, step.v_cache, step.slots, *sizes, *scales)
    return Call(kernel_name("write_kv", k.dtype, k_cache.dtype), tasks, args)


def _attend_call(step: _Step, out: Tensor) -> Call:
    q, k_cache, table = step.q, step.k_cache, step.table
    num_rows, num_heads, dim = q.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    num_requests, width = table.shape
    row_tile = _row_tile(step)
    tiles = -(-num_rows // row_tile)
    task_heads = num_kv_heads if tiles >= _MANY_TILES else 1
    tasks = tiles * num_kv_heads // task_heads
    rows = (num_rows, q.stride(0), num_requests, num_rows // num_requests, width)
    sizes = (num_blocks, block_size, num_heads, num_kv_heads, dim, tile_tokens(block_size))
    lens = (step.query_start_loc, step.context_lens, step.query_lens)
    cached = (k_cache, step.v_cache, table, *lens)
    # Stored keys are a factor short, and capped scores are in units of the cap.
    scale = step.scale * step.k_scale / (step.softcap or 1)
    options = (step.block_offset, step.window or 0, float(step.softcap or 0), float(step.v_scale))
    args = (q, *cached, out, *rows, *sizes, row_tile, float(scale), task_heads, *options)
    return Call(kernel_name("attend", q.dtype, k_cache.dtype), tasks, args)


def _row_tile(step: _Step) -> int:
    """Return rows per task: with the heads of a group, about 64 query vectors share a tile.

    A decode task takes rows of one request only.
    """
    tile = max(1, _TILE_VECTORS * step.k_cache.shape[2] // step.q.shape[1])
    if step.query_start_loc is not None:
        return tile
    return min(tile, step.q.shape[0] // step.context_lens.shape[0])


_INPUTS = (
    "Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, "
    "Tensor table, Tensor context_lens, Tensor query_lens, Tensor? block_offset, "
    "float scale, float? softcap, int? window, float k_scale, float v_scale"
)
OPERATORS = (
    Operator("attend_prefill", f"({_INPUTS}, Tensor query_start_loc) -> Tensor", _specs, _calls),
    Operator("attend_decode", f"({_INPUTS}) -> Tensor", _specs, _calls),
)
