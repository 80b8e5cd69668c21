"""Decode attention over the block KV cache: a few query tokens per request, two pathways.

Keys and values of the step are already in the cache; the kernels only read it. Blocks come in
folds of 128, one block per partition, so that one DMA instruction moves up to 128 of them.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from .block_gather import (
    fold_index,
    gather,
    gather_transposed,
    load_table,
    offsets_per_tile,
    select_live,
    staging_buffers,
)
from .masks import (
    FOLD_BLOCKS,
    block_positions,
    fold_positions,
    load_lengths,
    row_tokens,
    seen_from,
    visible,
)
from .online_softmax import add_keys, finish_softmax, head_of, start_softmax, transpose_queries


@nki.jit
def decode_attention(q, k_cache, v_cache, block_table, context_lens, query_lens, scale, query_len):
    """Attend to cached blocks gathered by DMA, where an unused table entry moves nothing.

    Dimensions:
        S requests, Q query tokens per request (1 to 8), H query heads, K key/value heads, D head
        dim, N blocks, B block size (1 to 128), W table columns: Q*H/K <= 128, D <= 128, W a
        multiple of 128. NeuronCore-v3 or newer.

    Args:
        q: [S*Q, H, D] queries in HBM; its dtype is the dtype of arithmetic and of the result.
        k_cache: [N, B, K, D] keys in HBM, of q's dtype or FP8 (then cast on the way).
        v_cache: [N, B, K, D] values in HBM, likewise.
        block_table: [S, W] int32 in HBM; -1 is not read.
        context_lens: [S, 1] int32 in HBM, tokens in the cache before this step.
        query_lens: [S, 1] int32 in HBM, tokens of this step, 0 to Q.
        scale: positive float, the factor of the scores; for FP8 keys divided by their scale.
        query_len: Q.

    Returns:
        [S*Q, H*D] in HBM, q's dtype. Rows j >= query_lens[s], and all rows of a request with
        both lengths 0, are exact zeros.

    Notes:
        Token j of request s sees positions 0 to context_lens[s] + j, all read from the cache.
        What lies beyond never reaches a result, whatever its bits: scores and values there are
        selected away, not multiplied by 0. Tiles depend on B, K, D and the dtype, never on S or
        W: a wider table adds steps that change no bit. fp32 is within 1e-5 of exact arithmetic,
        bf16 within 2e-2 (probabilities and result are rounded to 8 bits).
        Bytes moved are those of live blocks; arithmetic is done for all of W.
        Attention without causality (cross attention) is the same kernel with query_lens turned
        into one length per row: only _rows_see would differ.

    Pseudocode:
        for s in requests:
            for fold in folds_of_128(block_table[s]):
                for tile of tokens f in block:
                    k, v = gather(cache[fold, tile])           # skip -1
                    v = select(position < live_s, v, 0)
                    for h in kv_heads:
                        state[h] = online_softmax(state[h], q[s, h], k[h], v[h], mask)
            out[s] = state.values / state.sum
    """
    return _decode(
        (q, k_cache, v_cache, block_table, context_lens, query_lens), scale, query_len, gather
    )


@nki.jit
def decode_attention_transposed(
    q, k_cache, v_cache, block_table, context_lens, query_lens, scale, query_len
):
    """Attend to cached blocks whose keys are transposed by the DMA engines on their way.

    Dimensions:
        As in decode_attention, and D = 128, a 2-byte cache of q's dtype, N a multiple of 16.

    Args:
        As in decode_attention; an entry of -1 reads block 0, the null block.

    Returns:
        As in decode_attention, bit by bit.

    Notes:
        Saves the transposes of the Tensor Engine, but cannot skip: the hardware wants the number
        of indices to be a multiple of 16, so all 128 of a fold are read and -1 is saturated to
        block 0 by a cast from int32 over fp32 to uint32. Bytes moved are those of the bucket.

    Pseudocode:
        as in decode_attention, with
            k, v = gather_transposed(k_cache[max(fold, 0)]), gather(v_cache[max(fold, 0)])
    """
    assert k_cache.shape[3] == 128
    assert k_cache.dtype == nl.bfloat16 or k_cache.dtype == nl.float16
    assert k_cache.dtype == q.dtype
    assert k_cache.shape[0] % 16 == 0
    return _decode(
        (q, k_cache, v_cache, block_table, context_lens, query_lens),
        scale,
        query_len,
        gather_transposed,
    )


def _decode(tensors, scale, query_len, load_blocks):
    q, k_cache, v_cache, block_table, context_lens, query_lens = tensors
    rows, num_heads, head_dim = q.shape
    num_seqs, width = block_table.shape
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    num_folds = width // FOLD_BLOCKS
    step = offsets_per_tile(k_cache, q.dtype)
    assert width % FOLD_BLOCKS == 0
    assert rows == num_seqs * query_len
    assert query_len * group <= nl.tile_size.pmax
    assert head_dim <= nl.tile_size.pmax

    out = nl.ndarray((rows, num_heads * head_dim), dtype=q.dtype, buffer=nl.shared_hbm)

    # load what all requests share
    block_ids = load_table(block_table)
    context = load_lengths(context_lens, nl.tile_size.pmax)
    queried = load_lengths(query_lens, nl.tile_size.pmax)
    tokens = row_tokens(query_len, group)
    key_columns = fold_positions(query_len * group, step, block_size)
    value_rows = block_positions(step, block_size)
    # two pairs, so that the gather of one tile can run while the other is computed
    shape = (FOLD_BLOCKS, step, num_kv_heads, head_dim)
    buffers = (staging_buffers(shape, q.dtype), staging_buffers(shape, q.dtype))
    turn = 0

    per_load = nl.tile_size.pmax // query_len
    for seq in range(num_seqs):
        if seq % per_load == 0:
            loaded = _load_queries(q, seq * query_len, min(per_load, num_seqs - seq) * query_len)
        at = seq % per_load * query_len
        queries = _group_queries(loaded[:, :, at : at + query_len], num_kv_heads)
        seen, live = _rows_see(tokens, context, queried, seq)
        state = start_softmax(query_len * group, num_kv_heads, head_dim)
        for fold in range(num_folds):
            index = fold_index(block_ids, seq * num_folds + fold)
            for first in range(0, block_size, step):
                # load
                count = min(step, block_size - first)
                keys, values = load_blocks(
                    k_cache, v_cache, index, (first, count), buffers[turn % 2]
                )
                turn += 1
                # compute
                base = fold * FOLD_BLOCKS * block_size + first
                mask = visible(key_columns[:, 0:count, :], seen_from(seen, base))
                is_live = visible(value_rows[:, 0:count], seen_from(live, base))
                values = select_live(values, is_live)
                for head in range(num_kv_heads):
                    add_keys(
                        head_of(state, head),
                        queries[head],
                        keys[head],
                        values[:, :, head, :],
                        mask.reshape((query_len * group, count * FOLD_BLOCKS)),
                        scale,
                    )
        # store
        _store(out, state, seq * query_len, query_len)
    return out


def _load_queries(q, start, rows):
    """Return [D, H, rows] of the query rows from ``start`` on."""
    num_rows, num_heads, head_dim = q.shape
    loaded = nl.ndarray((rows, num_heads * head_dim), dtype=q.dtype, buffer=nl.sbuf)
    flat = q.reshape((num_rows, num_heads * head_dim))
    nisa.dma_copy(dst=loaded, src=flat[start : start + rows, :])
    return transpose_queries(loaded, num_heads, head_dim)


def _group_queries(queries, num_kv_heads):
    """Return per key/value head [D, Q * G], row (token, head of the group), of [D, H, Q]."""
    head_dim, num_heads, query_len = queries.shape
    group = num_heads // num_kv_heads
    grouped = []
    for head in range(num_kv_heads):
        joined = nl.ndarray((head_dim, query_len, group), dtype=queries.dtype, buffer=nl.sbuf)
        heads = queries[:, head * group : (head + 1) * group, :]
        nisa.tensor_copy(dst=joined, src=heads.permute((0, 2, 1)))
        grouped.append(joined.reshape((head_dim, query_len * group)))
    return grouped


def _rows_see(tokens, context, queried, seq):
    """Return how many keys each row sees [rows, 1], and how many any row sees [128, 1]."""
    rows = tokens.shape[0]
    is_real = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=is_real, data=tokens, op0=nl.less, operand0=queried[0:rows, seq : seq + 1]
    )
    seen = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=seen,
        data=tokens,
        op0=nl.add,
        operand0=context[0:rows, seq : seq + 1],
        op1=nl.add,
        operand1=1.0,
    )
    nisa.tensor_tensor(dst=seen, data1=seen, data2=is_real, op=nl.multiply)
    live = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(
        dst=live,
        data1=context[:, seq : seq + 1],
        data2=queried[:, seq : seq + 1],
        op=nl.add,
    )
    return seen, live


def _store(out, state, start, query_len):
    """Write the rows of one request, heads of a token side by side."""
    rows, num_kv_heads, head_dim = state[2].shape
    group = rows // query_len
    result = nl.ndarray((rows, num_kv_heads, head_dim), dtype=out.dtype, buffer=nl.sbuf)
    finish_softmax(state, result)
    by_head = out.reshape((out.shape[0], num_kv_heads, group, head_dim))
    for token in range(query_len):
        nisa.dma_copy(
            dst=by_head[start + token].permute((1, 0, 2)),
            src=result[token * group : (token + 1) * group, :, :],
        )
