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

from ..contract import PAD_BLOCK_ID, AttentionSpec, check_tensor, num_blocks_for
from .cache import read_blocks, write
from .layers import wide


@dataclass(frozen=True, slots=True)
class QueryRows:
    """Which request each query row belongs to, and how many tokens of it come up to the row.

    Both are int ``[R]``; a row of no request has 0 tokens and names any request. A window leaves
    of the tokens only the last.
    """

    request: Tensor
    num_tokens: Tensor

    def first_token(self, window: int | None) -> Tensor:
        """Return the position of the first token that each row sees: ``[R]``."""
        start = self.num_tokens if window is None else window
        return (self.num_tokens - start).clamp(min=0)


def prefill_rows(
    num_rows: int,
    prefill_tile: int,
    *,
    query_start_loc: Tensor,
    tile_request: Tensor,
    context_lens_P: Tensor,
    query_lens_P: Tensor,
) -> QueryRows:
    """Find the request and the number of tokens of each row of a packed prefill step."""
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
    """Find the request and the number of tokens of each of the S*Q rows of a decode step."""
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
    write(k_RKD, v_RKD, k_cache_NBKD, v_cache_NBKD, slot_mapping_R, spec=spec)
    return attend(
        q_RHD,
        k_cache_NBKD,
        v_cache_NBKD,
        block_table_SW,
        rows,
        spec=spec,
        block_offset=block_offset,
    )


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
    """Attend to the tokens that each row sees: ``[R, H*D]``.

    Column w of the table holds tokens from ``(block_offset + w) * block_size`` on; an entry of -1
    holds no keys. Computed in fp32 (fp64 for fp64), rounded to q's dtype. Columns that no row
    sees are skipped, which is exact (see the module docstring).

    Raises:
        ValueError: an input has the wrong shape or dtype, or the table lacks what a row sees.
    """
    _, block_size, num_kv_heads, _ = k_cache_NBKD.shape
    if block_offset is None:
        block_offset = torch.zeros(block_table.shape[0], dtype=torch.int32)
    _check_blocks(q_RHD, k_cache_NBKD, block_table, rows, block_offset)
    first_R, table_RW = rows.first_token(spec.window), block_table[rows.request]
    start_R = block_offset[rows.request] * block_size
    num_rows, num_heads, dim = q_RHD.shape
    q_RKGD = q_RHD.reshape(num_rows, num_kv_heads, num_heads // num_kv_heads, dim)
    q_RKGD = q_RKGD.to(wide(q_RHD.dtype)) * spec.scale
    state = _SoftmaxState.empty(q_RKGD, v_cache_NBKD.shape[3])
    for column in _seen_columns(first_R - start_R, rows.num_tokens - start_R, table_RW, block_size):
        block_R = table_RW[:, column]
        token_RB = start_R[:, None] + torch.arange(block_size * column, block_size * (column + 1))
        is_seen_RB = (token_RB >= first_R[:, None]) & (token_RB < rows.num_tokens[:, None])
        valid_RB = is_seen_RB & (block_R != PAD_BLOCK_ID)[:, None]
        # Entry -1 loads block 0 only to fill the shape: nothing of it is valid.
        index_R = torch.where(block_R == PAD_BLOCK_ID, 0, block_R)
        k_RKBD = read_blocks(k_cache_NBKD, index_R, q_RKGD.dtype, spec.k_scale)
        v_RKBD = read_blocks(v_cache_NBKD, index_R, q_RKGD.dtype, spec.v_scale)
        state = state.add_block(q_RKGD, k_RKBD, v_RKBD, valid_RB, spec.softcap)
    return state.result().flatten(1).to(q_RHD.dtype)


def _check_blocks(
    q_RHD: Tensor,
    k_cache_NBKD: Tensor,
    block_table: Tensor,
    rows: QueryRows,
    block_offset: Tensor,
) -> None:
    num_blocks, _, num_kv_heads, dim = k_cache_NBKD.shape
    num_rows, num_heads = rows.num_tokens.shape[0], q_RHD.shape[1]
    check_tensor("q", q_RHD, (num_rows, num_heads, dim))
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} query heads do not share {num_kv_heads} key/value heads")
    check_tensor("block_table", block_table, tuple(block_table.shape[:2]), torch.int32)
    check_tensor("block_offset", block_offset, (block_table.shape[0],), torch.int32)
    is_block = (block_table >= PAD_BLOCK_ID) & (block_table < num_blocks)
    if not is_block.all():
        raise ValueError(f"block {int(block_table[~is_block][0])} is not one of {num_blocks}")


def _seen_columns(first_R: Tensor, last_R: Tensor, table_RW: Tensor, block_size: int) -> range:
    """Return the table columns that some row sees tokens ``first .. last - 1`` of, from its start.

    Raises:
        ValueError: a row sees tokens before its table or past it.
    """
    is_live = first_R < last_R
    if not is_live.any():
        return range(0)
    first, last = int(first_R[is_live].min()), int(last_R[is_live].max())
    if first < 0:
        raise ValueError(f"a row sees {-first} tokens that lie before its block table")
    num_columns = num_blocks_for(last, block_size)
    if num_columns > table_RW.shape[1]:
        raise ValueError(
            f"a row sees token {last - 1} of its block table, which holds "
            f"{table_RW.shape[1] * block_size}"
        )
    return range(first // block_size, num_columns)


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
        self,
        q_RKGD: Tensor,
        k_RKBD: Tensor,
        v_RKBD: Tensor,
        valid_RB: Tensor,
        softcap: float | None,
    ) -> _SoftmaxState:
        """Take in the valid keys of one block; the cap bounds scores before any is masked.

        Invalid scores, weights and values are replaced, never multiplied by 0: they may be NaN.
        """
        valid_R11B = valid_RB[:, None, None]
        dots_RKGB = tree_sum(q_RKGD.unsqueeze(3) * k_RKBD.unsqueeze(2), dim=4)
        if softcap is not None:
            dots_RKGB = softcap * (dots_RKGB / softcap).tanh()
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
        return torch.where(self.total == 0, 0, self.output / self.total) + 0.0


def tree_sum(x: Tensor, dim: int) -> Tensor:
    """Sum over one dimension by halving it: bits depend on nothing but its size.

    ``torch.sum`` and matrix products may group terms by the other sizes and by strides.
    """
    while (size := x.shape[dim]) > 1:
        half = size // 2
        pairs = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
        x = torch.cat((pairs, x.narrow(dim, size - 1, 1)), dim) if size % 2 else pairs
    return x.squeeze(dim)
