"""Attention over the block KV cache in plain torch: write, then online softmax by block.

The numerics are those that every target shares: blocks in table order, a running maximum that
starts finite, invalid keys and values selected away, exact zeros for rows without keys. A block
that holds no key of a row changes nothing in that row, not even the last bit. Shape letters as
in ``kernels/kernel_set.py``; G is query heads per key/value head (H = K*G).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import (
    PAD_BLOCK_ID,
    PAD_SLOT_ID,
    AttentionSpec,
    check_slots,
    check_tensor,
    num_blocks_for,
)
from .layers import wide


@dataclass(frozen=True, slots=True)
class QueryRows:
    """Which request each query row belongs to, and how many cached tokens it attends to.

    Both are int ``[R]``; a row of no request has 0 keys and names any request.
    """

    request: Tensor
    num_keys: Tensor


def prefill_rows(
    num_rows: int,
    prefill_tile: int,
    *,
    query_start_loc: Tensor,
    tile_request: Tensor,
    context_lens_P: Tensor,
    query_lens_P: Tensor,
) -> QueryRows:
    """Find the request and the number of keys of each row of a packed prefill step."""
    num_requests = context_lens_P.shape[0]
    check_tensor("context_lens", context_lens_P, (num_requests,), torch.int32)
    check_tensor("query_lens", query_lens_P, (num_requests,), torch.int32)
    check_tensor("query_start_loc", query_start_loc, (num_requests + 1,), torch.int32)
    if num_rows % prefill_tile:
        raise ValueError(f"{num_rows} rows are not whole tiles of {prefill_tile} tokens")
    check_tensor("tile_request", tile_request, (num_rows // prefill_tile,), torch.int32)
    owner = tile_request.repeat_interleave(prefill_tile)
    request = owner.clamp(min=0)
    token = torch.arange(num_rows, dtype=torch.int32) - query_start_loc[request]
    is_live = (owner >= 0) & (token >= 0) & (token < query_lens_P[request])
    return QueryRows(request, torch.where(is_live, context_lens_P[request] + token + 1, 0))


def decode_rows(num_rows: int, *, context_lens_S: Tensor, query_lens_S: Tensor) -> QueryRows:
    """Find the request and the number of keys of each of the S*Q rows of a decode step."""
    num_requests = context_lens_S.shape[0]
    check_tensor("context_lens", context_lens_S, (num_requests,), torch.int32)
    check_tensor("query_lens", query_lens_S, (num_requests,), torch.int32)
    if num_requests == 0 or num_rows % num_requests:
        raise ValueError(f"{num_rows} rows do not divide among {num_requests} requests")
    query_len = num_rows // num_requests
    row = torch.arange(num_rows, dtype=torch.int32)
    request, token = row // query_len, row % query_len
    is_live = token < query_lens_S[request]
    return QueryRows(request, torch.where(is_live, context_lens_S[request] + token + 1, 0))


def attend_decode(
    q_RHD: Tensor,
    k_RKD: Tensor,
    v_RKD: Tensor,
    k_cache_NBKD: Tensor,
    v_cache_NBKD: Tensor,
    *,
    slot_mapping_R: Tensor,
    block_table_SW: Tensor,
    context_lens_S: Tensor,
    query_lens_S: Tensor,
    spec: AttentionSpec,
    block_offset: Tensor | None = None,
) -> Tensor:
    """Write the new keys and values, then attend: ``[R, H*D]``.

    Raises:
        ValueError: an input has the wrong shape or dtype, a slot or a length does not fit.
    """
    rows = decode_rows(q_RHD.shape[0], context_lens_S=context_lens_S, query_lens_S=query_lens_S)
    write(k_RKD, v_RKD, k_cache_NBKD, v_cache_NBKD, slot_mapping_R)
    return attend(
        q_RHD,
        k_cache_NBKD,
        v_cache_NBKD,
        block_table_SW,
        rows,
        spec=spec,
        block_offset=block_offset,
    )


def write(
    k_RKD: Tensor,
    v_RKD: Tensor,
    k_cache_NBKD: Tensor,
    v_cache_NBKD: Tensor,
    slot_mapping_R: Tensor,
) -> None:
    """Store each row at its slot; rows at slot -1 are dropped.

    Raises:
        ValueError: a shape differs, or a slot is neither -1 nor in the cache.
    """
    num_blocks, block_size, num_kv_heads, k_dim = k_cache_NBKD.shape
    num_rows, v_dim = slot_mapping_R.shape[0], v_cache_NBKD.shape[3]
    check_tensor("k_new", k_RKD, (num_rows, num_kv_heads, k_dim))
    check_tensor("v_new", v_RKD, (num_rows, num_kv_heads, v_dim))
    check_tensor("v_cache", v_cache_NBKD, (num_blocks, block_size, num_kv_heads, v_dim))
    check_tensor("slot_mapping", slot_mapping_R, (num_rows,), torch.int32)
    check_slots(slot_mapping_R, num_blocks * block_size)  # plain indexing would wrap
    is_real = slot_mapping_R != PAD_SLOT_ID
    slots = slot_mapping_R[is_real]
    blocks, offsets = slots // block_size, slots % block_size
    k_cache_NBKD[blocks, offsets] = k_RKD[is_real].to(k_cache_NBKD.dtype)
    v_cache_NBKD[blocks, offsets] = v_RKD[is_real].to(v_cache_NBKD.dtype)


def attend(
    q_RHD: Tensor,
    k_cache_NBKD: Tensor,
    v_cache_NBKD: Tensor,
    block_table: Tensor,
    rows: QueryRows,
    *,
    spec: AttentionSpec,
    block_offset: Tensor | None = None,
) -> Tensor:
    """Attend to the first ``num_keys`` tokens of each row's request: ``[R, H*D]``.

    A table entry of -1 holds no keys. Computed in fp32 (fp64 for fp64), rounded to q's dtype.
    Columns past the longest row are skipped, which is exact (see the module docstring).
    """
    _, block_size, num_kv_heads, _ = k_cache_NBKD.shape
    num_columns = _live_columns(q_RHD, k_cache_NBKD, block_table, rows)
    num_rows, num_heads, dim = q_RHD.shape
    q_RKGD = q_RHD.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, dim)
    q_RKGD = q_RKGD.to(wide(q_RHD.dtype)) * spec.scale
    state = _SoftmaxState.empty(q_RKGD, v_cache_NBKD.shape[3])
    table_RW = block_table[rows.request]
    offset_B = torch.arange(block_size, dtype=torch.int32)
    for column in range(num_columns):
        block_R = table_RW[:, column]
        is_before_end = column * block_size + offset_B < rows.num_keys[:, None]
        valid_RB = is_before_end & (block_R != PAD_BLOCK_ID)[:, None]
        # Entry -1 loads block 0 only to fill the shape: nothing of it is valid.
        index_R = torch.where(block_R == PAD_BLOCK_ID, 0, block_R)
        k_RKBD = k_cache_NBKD[index_R].to(q_RKGD.dtype).transpose(1, 2)
        v_RKBD = v_cache_NBKD[index_R].to(q_RKGD.dtype).transpose(1, 2)
        state = state.add_block(q_RKGD, k_RKBD, v_RKBD, valid_RB)
    return state.result().flatten(1).to(q_RHD.dtype)


def _live_columns(q_RHD: Tensor, k_cache_NBKD: Tensor, block_table: Tensor, rows: QueryRows) -> int:
    """Check what ``attend`` reads; return how many table columns hold keys of any row."""
    num_blocks, block_size, num_kv_heads, dim = k_cache_NBKD.shape
    num_rows, num_heads = rows.num_keys.shape[0], q_RHD.shape[1]
    check_tensor("q", q_RHD, (num_rows, num_heads, dim))
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} key/value heads")
    check_tensor("block_table", block_table, tuple(block_table.shape[:2]), torch.int32)
    is_block = (block_table >= PAD_BLOCK_ID) & (block_table < num_blocks)
    if not is_block.all():
        raise ValueError(f"block {int(block_table[~is_block][0])} is not one of {num_blocks}")
    longest = int(rows.num_keys.max()) if num_rows else 0
    num_columns = num_blocks_for(longest, block_size)
    if num_columns > block_table.shape[1]:
        raise ValueError(
            f"a row has {longest} keys, its block table holds {block_table.shape[1] * block_size}"
        )
    return num_columns


@dataclass(frozen=True, slots=True)
class _SoftmaxState:
    """Running softmax of each row: maximum and sum ``[R, K, G, 1]``, output ``[R, K, G, D]``."""

    maximum: Tensor
    total: Tensor
    output: Tensor

    @staticmethod
    def empty(q_RKGD: Tensor, v_dim: int) -> _SoftmaxState:
        """Start with no keys; the maximum is finite, so that differences of it are numbers."""
        lowest = torch.full_like(q_RKGD[..., :1], torch.finfo(q_RKGD.dtype).min)
        zeros = torch.zeros_like(lowest)
        return _SoftmaxState(lowest, zeros, zeros.expand(*zeros.shape[:3], v_dim))

    def add_block(
        self, q_RKGD: Tensor, k_RKBD: Tensor, v_RKBD: Tensor, valid_RB: Tensor
    ) -> _SoftmaxState:
        """Take in the valid keys of one block.

        Invalid scores, weights and values are replaced, never multiplied by 0: they may be NaN.
        """
        valid_R11B = valid_RB[:, None, None]
        dots_RKGB = tree_sum(q_RKGD.unsqueeze(3) * k_RKBD.unsqueeze(2), dim=4)
        scores_RKGB = torch.where(valid_R11B, dots_RKGB, torch.finfo(dots_RKGB.dtype).min)
        maximum = torch.maximum(self.maximum, scores_RKGB.amax(dim=3, keepdim=True))
        decay = (self.maximum - maximum).exp()
        weights_RKGB = torch.where(valid_R11B, (scores_RKGB - maximum).exp(), 0)
        values_RKBD = torch.where(valid_RB[:, None, :, None], v_RKBD, 0)
        weighted = tree_sum(weights_RKGB.unsqueeze(4) * values_RKBD.unsqueeze(2), dim=3)
        total = self.total * decay + tree_sum(weights_RKGB, dim=3).unsqueeze(3)
        return _SoftmaxState(maximum, total, self.output * decay + weighted)

    def result(self) -> Tensor:
        """Return the attention output, exact zeros where there was no key."""
        # Adding 0 turns -0.0, which one more empty block would have turned, into 0.0.
        return torch.where(self.total > 0, self.output / self.total, 0) + 0.0


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over one dimension by halving it: bits depend on nothing but its size.

    ``torch.sum`` and matrix products may group terms by the other sizes and by strides.
    """
    while (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
        x = torch.cat((pairs, x.narrow(dim, size - 1, 1)), dim) if size % 2 else pairs
    return x.squeeze(dim)
