"""Prefill attention over the block KV cache: packed chunks, each with everything cached before.

New keys and values are already in the cache; the kernel only reads it. Queries come in tiles of
128 rows that belong to one request; keys come token by token, 128 to a gather, because one
gather serves 128 query rows and all heads of a tile.
"""

import nki
import nki.isa as nisa
import nki.language as nl

from .masks import visible
from .online_softmax import (
    add_keys,
    finish_softmax,
    head_of,
    start_softmax,
    transpose_keys,
    transpose_queries,
)
from .tile_rows import QUERY_TILE, count_steps, first_seen, load_request, of_request, rows_see
from .token_gather import (
    entry_steps,
    first_entries,
    gather_tokens,
    key_positions,
    step_blocks,
    tile_tokens,
    tiles_per_step,
    token_buffers,
    token_layout,
)
from .windows import times, whole_multiples, within_window


@nki.jit
def prefill_attention(
    q,
    k_cache,
    v_cache,
    block_table,
    tile_request,
    query_start_loc,
    context_lens,
    query_lens,
    scale,
    softcap=0.0,
    v_scale=1.0,
):
    """Attend causally from packed, tile-aligned chunks to all that the cache holds of them.

    Dimensions:
        T tokens (a multiple of 128), P requests, H query heads, K key/value heads, D head dim
        (at most 128), N blocks, B block size (1 to 128), W table columns (at least as many as
        the tokens of a request need). NeuronCore-v3 or newer.

    Args:
        q: [T, H, D] queries in HBM; its dtype is the dtype of arithmetic and of the result.
        k_cache: [N, B, K, D] keys in HBM, of q's dtype or FP8 (then cast on chip).
        v_cache: [N, B, K, D] values in HBM, likewise.
        block_table: [P, W] int32 in HBM; -1 is not read.
        tile_request: [T / 128, 1] int32 in HBM, the request of each tile of rows, -1 for padding.
        query_start_loc: [P + 1, 1] int32 in HBM, first row of each request, multiples of 128.
        context_lens: [P, 1] int32 in HBM, tokens in the cache before this step.
        query_lens: [P, 1] int32 in HBM, tokens of this step.
        scale: positive float, the factor of the scores; for FP8 keys times their k_scale.
        softcap: the bound of scores, which become softcap * tanh(score / softcap); 0.0 is none.
        v_scale: what stored values are multiplied by; 1.0 unless they are FP8.

    Returns:
        [T, H*D] in HBM, q's dtype; rows of no request are exact zeros.

    Notes:
        Token j of request p sees positions 0 to context_lens[p] + j, all read from the cache.
        Run-time bound: the loop over keys is nl.fori_loop up to a register that the kernel
        computes from the lengths, so a tile does ceil(keys it sees / step) steps and a padding
        tile none; gathers skip every token beyond. Time and bytes follow the live context
        (planner: `prefix: exact`, to one step of at most 512 tokens), not W.
        Query tiles are unrolled. Everything beyond a row's keys is selected away, not multiplied
        by 0. Tiles depend on B, K, D and the dtype, never on T, P or W: a wider table changes no
        bit. fp32 is within 1e-5 of exact arithmetic, bf16 within 2e-2 (probabilities and result
        are rounded to 8 bits). T and lengths must be below 2**24, exact in fp32.

    Pseudocode:
        for tile in tiles_of_128(q):
            p = tile_request[tile]
            for step in range(ceil(keys_seen_by(tile) / step_size)):      # at run time
                slots = block_table[p][positions(step) / B] * B + positions(step) % B
                k, v = gather(cache.rows[slots])                          # skip beyond
                for h in heads:
                    state[h] = online_softmax(state[h], q[tile, h], k[h / G], v[h / G], causal)
            out[tile] = state.values / state.sum * v_scale
    """
    tensors = (q, k_cache, v_cache, block_table, tile_request)
    lengths = (context_lens, query_lens, query_start_loc)
    return _prefill(tensors, lengths, (scale, softcap), v_scale, 0)


@nki.jit
def prefill_attention_windowed(
    q,
    k_cache,
    v_cache,
    block_table,
    tile_request,
    query_start_loc,
    context_lens,
    query_lens,
    block_offset,
    scale,
    window,
    softcap=0.0,
    v_scale=1.0,
):
    """Attend to the last tokens before each query alone, from tables as narrow as the window.

    Dimensions:
        As in prefill_attention; W table columns hold what the window of a chunk spans.

    Args:
        As in prefill_attention, and
        block_offset: [P, 1] int32 in HBM, blocks of each request before its table: column w
            holds tokens from (block_offset + w) * B on. Lies in front of the window.
        window: tokens that a query sees, its own included; at least 1.

    Returns:
        As in prefill_attention.

    Notes:
        Token j of request p sees positions max(0, t - window + 1) to t = context_lens[p] + j.
        Run-time bound: a tile begins at the step of keys that holds the first token its first
        row sees, so it does at most ceil((window + 126) / step) + 1 steps, and gathers skip every
        token that none of its rows sees. Steps begin at multiples of the step from position 0 on:
        neither the offset nor what is before the window changes a bit, and cutting a prompt into
        chunks does not either. Lengths must be below 2**22.

    Pseudocode:
        as prefill_attention, with
            for step in range(first_seen_by(tile) / step_size, ceil(keys_seen_by(tile) / ...)):
                slots = block_table[p][positions(step) / B - block_offset[p]] * B + ...
    """
    assert window >= 1
    tensors = (q, k_cache, v_cache, block_table, tile_request, block_offset)
    lengths = (context_lens, query_lens, query_start_loc)
    return _prefill(tensors, lengths, (scale, softcap), v_scale, window)


def _prefill(tensors, lengths, scoring, v_scale, window):
    q, k_cache, v_cache, block_table, tile_request = tensors[0:5]
    num_tokens, num_heads, head_dim = q.shape
    block_size = k_cache.shape[1]
    assert num_tokens % QUERY_TILE == 0
    assert head_dim <= nl.tile_size.pmax
    assert block_size <= nl.tile_size.pmax
    out = nl.ndarray((num_tokens, num_heads * head_dim), dtype=q.dtype, buffer=nl.shared_hbm)

    # what all tiles share
    tiles = tiles_per_step(k_cache, q.dtype)
    layout = token_layout(tiles, block_size)
    columns = key_positions(QUERY_TILE, tiles, block_size)
    buffers = token_buffers(tiles, k_cache)
    blocks = step_blocks(tiles, block_size)
    step = blocks * block_size
    max_steps = -(-block_table.shape[1] // blocks)
    if window > 0:
        # what 128 rows see, from anywhere in a step on
        max_steps = min(max_steps + 1, -(-(window + QUERY_TILE - 1 + step - 1) // step))
    for tile in range(num_tokens // QUERY_TILE):
        # load
        request = load_request(tile_request, tile)
        seen, live, place = rows_see(lengths, request, tile)
        queries = _load_queries(q, tile)
        entries = first_entries(request, block_table, layout)
        bounds = ([seen], [live])
        if window > 0:
            first = first_seen(place, window)
            begun = whole_multiples(first, step)
            _move_entries(entries, begun, of_request(tensors[5], request), blocks)
            bounds = within_window((seen, live), first, times(begun, step), window)
        # compute
        state = start_softmax(QUERY_TILE, num_heads, head_dim)
        source = (k_cache, v_cache, block_table)
        tools = (layout, columns, buffers)
        count = count_steps(bounds[1][0], step, max_steps)
        _attend_tile(state, queries, source, (entries, bounds, count), tools, scoring)
        # store
        result = nl.ndarray((QUERY_TILE, num_heads, head_dim), dtype=q.dtype, buffer=nl.sbuf)
        finish_softmax(state, result, v_scale)
        rows = out[tile * QUERY_TILE : (tile + 1) * QUERY_TILE, :]
        nisa.dma_copy(dst=rows, src=result.reshape((QUERY_TILE, num_heads * head_dim)))
    return out


def _attend_tile(state, queries, source, place, tools, scoring):
    """Run one tile of queries over ``count`` steps of keys, changing entries and bounds."""
    k_cache = source[0]
    entries, bounds, count = place
    rows, keys_left = bounds
    layout, columns, buffers = tools
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = queries.shape[1] // num_kv_heads
    tiles = layout[0].shape[1]
    step = tiles * tile_tokens(block_size)
    advance = entry_steps(tiles, block_size)

    def body(index):
        # load
        keys, values = gather_tokens(source, entries, keys_left, layout, (buffers, queries.dtype))
        # compute
        mask = visible(columns, rows)
        for head in range(num_kv_heads):
            turned = transpose_keys(keys[:, :, head, :])
            for query_head in range(head * group, (head + 1) * group):
                add_keys(
                    head_of(state, query_head),
                    queries[:, query_head, :],
                    turned,
                    values[:, :, head, :],
                    mask,
                    scoring,
                )
        # advance
        nisa.tensor_tensor(dst=entries, data1=entries, data2=advance, op=nl.add)
        for left in rows + keys_left:
            nisa.tensor_scalar(dst=left, data=left, op0=nl.subtract, operand0=float(step))

    nl.fori_loop(0, count, body)


def _move_entries(entries, begun, offset, blocks):
    """Move table entries to the step of keys ``begun``, in a table that leaves out blocks."""
    ahead = nl.ndarray(begun.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=ahead,
        data=begun,
        op0=nl.multiply,
        operand0=float(blocks),
        op1=nl.subtract,
        operand1=offset,
    )
    columns = nl.ndarray(begun.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=columns, src=ahead)
    for tile in range(entries.shape[1]):
        moved = entries[:, tile : tile + 1]
        nisa.tensor_tensor(dst=moved, data1=moved, data2=columns, op=nl.add)


def _load_queries(q, tile):
    """Return [D, H, 128] of the tile's rows."""
    num_tokens, num_heads, head_dim = q.shape
    loaded = nl.ndarray((QUERY_TILE, num_heads * head_dim), dtype=q.dtype, buffer=nl.sbuf)
    flat = q.reshape((num_tokens, num_heads * head_dim))
    nisa.dma_copy(dst=loaded, src=flat[tile * QUERY_TILE : (tile + 1) * QUERY_TILE, :])
    return transpose_queries(loaded, num_heads, head_dim)
