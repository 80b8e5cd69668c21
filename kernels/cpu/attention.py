"""Attention over the block cache: write by slot, then attend from the cache only.

Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import check_tensor
from .native import Call
from .operators import (
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


def _check_cache(q: Tensor, k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor) -> None:
    num_rows, num_heads, dim = q.shape
    num_blocks, block_size, num_kv_heads, _ = k_cache.shape
    check_dtype("q", q)
    check_tensor("k_new", k, (num_rows, num_kv_heads, dim), q.dtype)
    check_tensor("v_new", v, (num_rows, num_kv_heads, dim), q.dtype)
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        check_tensor(name, cache, (num_blocks, block_size, num_kv_heads, dim), q.dtype)
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} key/value heads")
    if dim % 8:
        raise ValueError(f"q has head dim {dim}, expected a multiple of 8")
    for name, tensor in (("q", q), ("k_new", k), ("v_new", v)):
        check_dense(name, tensor, 2)
    check_contiguous(k_cache=k_cache, v_cache=v_cache)


def _check_requests(
    num_rows: int, slots: Tensor, table: Tensor, context_lens: Tensor, query_lens: Tensor
) -> None:
    (num_requests,) = context_lens.shape
    check_tensor("slot_mapping", slots, (num_rows,), torch.int32)
    check_tensor("block_table", table, (num_requests, table.shape[1]), torch.int32)
    check_tensor("context_lens", context_lens, (num_requests,), torch.int32)
    check_tensor("query_lens", query_lens, (num_requests,), torch.int32)
    check_contiguous(slots=slots, table=table, context_lens=context_lens, query_lens=query_lens)


def _result(q: Tensor) -> tuple[TensorSpec, ...]:
    num_rows, num_heads, dim = q.shape
    return (TensorSpec((num_rows, num_heads * dim), q.dtype),)


def _prefill_specs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    query_start_loc: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
) -> tuple[TensorSpec, ...]:
    _check_cache(q, k, v, k_cache, v_cache)
    _check_requests(q.shape[0], slots, table, context_lens, query_lens)
    check_tensor("query_start_loc", query_start_loc, (context_lens.shape[0] + 1,), torch.int32)
    check_contiguous(query_start_loc=query_start_loc)
    return _result(q)


def _decode_specs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
) -> tuple[TensorSpec, ...]:
    _check_cache(q, k, v, k_cache, v_cache)
    _check_requests(q.shape[0], slots, table, context_lens, query_lens)
    if context_lens.shape[0] == 0 or q.shape[0] % context_lens.shape[0]:
        raise ValueError(f"{q.shape[0]} rows do not divide among {context_lens.shape[0]} requests")
    return _result(q)


def _write_call(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slots: Tensor) -> Call:
    num_rows, num_kv_heads, dim = k.shape
    num_slots = k_cache.shape[0] * k_cache.shape[1]
    tasks, rows = row_chunks(num_rows, 2 * num_kv_heads * dim)
    sizes = (num_rows, k.stride(0), v.stride(0), num_kv_heads * dim, num_slots, rows)
    return Call(kernel_name("write_kv", k.dtype), tasks, (k, v, k_cache, v_cache, slots, *sizes))


def _attend_call(
    q: Tensor,
    out: Tensor,
    caches: tuple[Tensor, Tensor],
    table: Tensor,
    lens: tuple[Tensor | None, Tensor, Tensor],
    *,
    row_tile: int,
    scale: float,
) -> Call:
    num_rows, num_heads, dim = q.shape
    num_blocks, block_size, num_kv_heads, _ = caches[0].shape
    num_requests, width = table.shape
    tiles = -(-num_rows // row_tile)
    task_heads = num_kv_heads if tiles >= _MANY_TILES else 1
    tasks = tiles * num_kv_heads // task_heads
    rows = (num_rows, q.stride(0), num_requests, num_rows // num_requests, width)
    sizes = (num_blocks, block_size, num_heads, num_kv_heads, dim, tile_tokens(block_size))
    args = (q, *caches, table, *lens, out, *rows, *sizes, row_tile, float(scale), task_heads)
    return Call(kernel_name("attend", q.dtype), tasks, args)


def _row_tile(q: Tensor, k_cache: Tensor) -> int:
    """Return rows per task: with the heads of a group, about 64 query vectors share a tile."""
    return max(1, _TILE_VECTORS * k_cache.shape[2] // q.shape[1])


def _prefill_calls(
    outs: tuple[Tensor, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    query_start_loc: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
) -> list[Call]:
    lens = (query_start_loc, context_lens, query_lens)
    tile = _row_tile(q, k_cache)
    return [
        _write_call(k, v, k_cache, v_cache, slots),
        _attend_call(q, outs[0], (k_cache, v_cache), table, lens, row_tile=tile, scale=scale),
    ]


def _decode_calls(
    outs: tuple[Tensor, ...],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    slots: Tensor,
    table: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
) -> list[Call]:
    lens = (None, context_lens, query_lens)
    tile = min(_row_tile(q, k_cache), q.shape[0] // context_lens.shape[0])
    return [
        _write_call(k, v, k_cache, v_cache, slots),
        _attend_call(q, outs[0], (k_cache, v_cache), table, lens, row_tile=tile, scale=scale),
    ]


_INPUTS = "Tensor q, Tensor k, Tensor v, Tensor(a!) k_cache, Tensor(b!) v_cache, Tensor slots, "
_LENS = "Tensor context_lens, Tensor query_lens, float scale"
OPERATORS = (
    Operator(
        "attend_prefill",
        f"({_INPUTS}Tensor table, Tensor query_start_loc, {_LENS}) -> Tensor",
        _prefill_specs,
        _prefill_calls,
    ),
    Operator(
        "attend_decode",
        f"({_INPUTS}Tensor table, {_LENS}) -> Tensor",
        _decode_specs,
        _decode_calls,
    ),
)
