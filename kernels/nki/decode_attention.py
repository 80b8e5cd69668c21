"""Decode attention over the block KV cache: a few query tokens per request, two pathways.

Keys and values of the step are already in the cache; the kernels only read it. Blocks come in
folds of 128, one block per partition, so that one DMA instruction moves up to 128 of them.
"""

import nki
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
from .decode_rows import group_queries, load_queries, rows_see, store_rows
from .masks import (
    FOLD_BLOCKS,
    block_positions,
    bounds_from,
    fold_positions,
    load_lengths,
    row_tokens,
    visible,
)
from .online_softmax import add_keys, head_of, start_softmax
from .windows import window_blocks, window_keys


@nki.jit
def decode_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    query_lens,
    scale,
    query_len,
    softcap=0.0,
    v_scale=1.0,
):
    """Attend to cached blocks gathered by DMA, where an unused table entry moves nothing.

    Dimensions:
        S requests, Q query tokens per request (1 to 8), H query heads, K key/value heads, D head
        dim, N blocks, B block size (1 to 128), W table columns: Q*H/K <= 128, D <= 128, W a
        multiple of 128. NeuronCore-v3 or newer.

    Args:
        q: [S*Q, H, D] queries in HBM; its dtype is the dtype of arithmetic and of the result.
        k_cache: [N, B, K, D] keys in HBM, of q's dtype or FP8 (then cast on chip).
        v_cache: [N, B, K, D] values in HBM, likewise.
        block_table: [S, W] int32 in HBM; -1 is not read.
        context_lens: [S, 1] int32 in HBM, tokens in the cache before this step.
        query_lens: [S, 1] int32 in HBM, tokens of this step, 0 to Q.
        scale: positive float, the factor of the scores; for FP8 keys times their k_scale.
        query_len: Q.
        softcap: the bound of scores, which become softcap * tanh(score / softcap); 0.0 is none.
        v_scale: what stored values are multiplied by; 1.0 unless they are FP8.

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
        into one length per row: only rows_see would differ.

    Pseudocode:
        for s in requests:
            for fold in folds_of_128(block_table[s]):
                for tile of tokens f in block:
                    k, v = gather(cache[fold, tile])           # skip -1
                    v = select(position < live_s, v, 0)
                    for h in kv_heads:
                        state[h] = online_softmax(state[h], q[s, h], k[h], v[h], mask)
            out[s] = state.values / state.sum * v_scale
    """
    tensors = (q, k_cache, v_cache, block_table, context_lens, query_lens)
    return _decode(tensors, (scale, softcap), (query_len, v_scale, 0), gather)


@nki.jit
def decode_attention_windowed(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    query_lens,
    block_offset,
    scale,
    query_len,
    window,
    softcap=0.0,
    v_scale=1.0,
):
    """Attend to the last tokens before each query alone, from tables as narrow as the window.

    Dimensions:
        As in decode_attention, and W any number of columns.

    Args:
        As in decode_attention, and
        block_offset: [S, 1] int32 in HBM, blocks of each request before its table: column w
            holds tokens from (block_offset + w) * B on. Lies in front of the window.
        window: tokens that a query sees, its own included; at least 1.

    Returns:
        As in decode_attention.

    Notes:
        Token j of request s sees positions max(0, t - window + 1) to t = context_lens[s] + j.
        Partition 0 of the first fold is the first block that token 0 sees, wherever that block
        lies in the table: neither the offset nor what is before the window changes a bit, and
        as long as the window reaches back to position 0 the bits are those of decode_attention.
        Bytes moved are those of live blocks in the window, table entries before it and beyond
        the last token are not read; arithmetic is done for the window, not for W.
        Lengths must be below 2**22, S*W below 2**24.

    Pseudocode:
        first = max(0, context_lens[s] + 1 - window) / B
        as decode_attention over block_table[s][first - block_offset[s] :], with both bounds
    """
    assert window >= 1
    tensors = (q, k_cache, v_cache, block_table, context_lens, query_lens, block_offset)
    return _decode(tensors, (scale, softcap), (query_len, v_scale, window), gather)


@nki.jit
def decode_attention_transposed(
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    query_lens,
    scale,
    query_len,
    softcap=0.0,
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
    tensors = (q, k_cache, v_cache, block_table, context_lens, query_lens)
    return _decode(tensors, (scale, softcap), (query_len, 1.0, 0), gather_transposed)


def _decode(tensors, scoring, numbers, load_blocks):
    q, k_cache, v_cache, block_table = tensors[0:4]
    query_len, v_scale, window = numbers
    rows, num_heads, head_dim = q.shape
    num_seqs = block_table.shape[0]
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = num_heads // num_kv_heads
    step = offsets_per_tile(k_cache, q.dtype)
    assert rows == num_seqs * query_len
    assert query_len * group <= nl.tile_size.pmax
    assert head_dim <= nl.tile_size.pmax

    out = nl.ndarray((rows, num_heads * head_dim), dtype=q.dtype, buffer=nl.shared_hbm)

    # load what all requests share
    lengths = (
        load_lengths(tensors[4], nl.tile_size.pmax),
        load_lengths(tensors[5], nl.tile_size.pmax),
    )
    if window == 0:
        assert block_table.shape[1] % FOLD_BLOCKS == 0
        blocks = load_table(block_table)
    else:
        blocks = window_blocks(lengths[0], tensors[6], block_table, (window, block_size))
    tokens = row_tokens(query_len, group)
    key_columns = fold_positions(query_len * group, step, block_size)
    value_rows = block_positions(step, block_size)
    # two pairs, so that the gather of one tile can run while the other is computed
    shape = (FOLD_BLOCKS, step, num_kv_heads, head_dim)
    cached = k_cache.dtype
    buffers = (staging_buffers(shape, cached), staging_buffers(shape, cached))
    turn = 0

    per_load = nl.tile_size.pmax // query_len
    for seq in range(num_seqs):
        if seq % per_load == 0:
            loaded = load_queries(q, seq * query_len, min(per_load, num_seqs - seq) * query_len)
        at = seq % per_load * query_len
        queries = group_queries(loaded[:, :, at : at + query_len], num_kv_heads)
        bounds = rows_see(tokens, lengths, seq)
        if window == 0:
            indices, seen, live = _table_keys(block_table, blocks, bounds, seq)
        else:
            indices, seen, live = window_keys(
                block_table, blocks, bounds, seq, (query_len, window, block_size)
            )
        state = start_softmax(query_len * group, num_kv_heads, head_dim)
        for fold in range(len(indices)):
            for first in range(0, block_size, step):
                # load
                count = min(step, block_size - first)
                keys, values = load_blocks(
                    k_cache, v_cache, indices[fold], (first, count), buffers[turn % 2], q.dtype
                )
                turn += 1
                # compute
                base = fold * FOLD_BLOCKS * block_size + first
                mask = visible(key_columns[:, 0:count, :], bounds_from(seen, base))
                is_live = visible(value_rows[:, 0:count], bounds_from(live, base))
                values = select_live(values, is_live, q.dtype)
                for head in range(num_kv_heads):
                    add_keys(
                        head_of(state, head),
                        queries[head],
                        keys[head],
                        values[:, :, head, :],
                        mask.reshape((query_len * group, count * FOLD_BLOCKS)),
                        scoring,
                    )
        # store
        store_rows(out, state, seq * query_len, query_len, v_scale)
    return out


def _table_keys(block_table, block_ids, bounds, seq):
    """Return block ids of each fold of a request's table, and bounds of rows and of keys."""
    num_folds = block_table.shape[1] // FOLD_BLOCKS
    indices = []
    for fold in range(num_folds):
        indices.append(fold_index(block_ids, seq * num_folds + fold))
    return indices, [bounds[0]], [bounds[1]]
