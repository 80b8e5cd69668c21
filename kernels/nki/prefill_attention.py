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
from .token_gather import (
    entry_steps,
    first_entries,
    gather_tokens,
    key_positions,
    tile_tokens,
    tiles_per_step,
    token_buffers,
    token_layout,
)

QUERY_TILE = 128
"""Rows of a query tile; requests start at multiples of it."""


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
):
    """Attend causally from packed, tile-aligned chunks to all that the cache holds of them.

    Dimensions:
        T tokens (a multiple of 128), P requests, H query heads, K key/value heads, D head dim
        (at most 128), N blocks, B block size (1 to 128), W table columns (at least as many as
        the tokens of a request need). NeuronCore-v3 or newer.

    Args:
        q: [T, H, D] queries in HBM; its dtype is the dtype of arithmetic and of the result.
        k_cache: [N, B, K, D] keys in HBM, of q's dtype or FP8 (then cast on the way).
        v_cache: [N, B, K, D] values in HBM, likewise.
        block_table: [P, W] int32 in HBM; -1 is not read.
        tile_request: [T / 128, 1] int32 in HBM, the request of each tile of rows, -1 for padding.
        query_start_loc: [P + 1, 1] int32 in HBM, first row of each request, multiples of 128.
        context_lens: [P, 1] int32 in HBM, tokens in the cache before this step.
        query_lens: [P, 1] int32 in HBM, tokens of this step.
        scale: positive float, the factor of the scores; for FP8 keys divided by their scale.

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
            out[tile] = state.values / state.sum
    """
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
    buffers = token_buffers(tiles, k_cache, q.dtype)
    lengths = (context_lens, query_lens, query_start_loc)
    for tile in range(num_tokens // QUERY_TILE):
        # load
        request = _load_request(tile_request, tile)
        seen, live = _rows_see(lengths, request, tile)
        queries = _load_queries(q, tile)
        # compute
        state = start_softmax(QUERY_TILE, num_heads, head_dim)
        source = (k_cache, v_cache, block_table)
        place = (request, seen, live, layout, columns, buffers)
        _attend_tile(state, queries, source, place, scale)
        # store
        result = nl.ndarray((QUERY_TILE, num_heads, head_dim), dtype=q.dtype, buffer=nl.sbuf)
        finish_softmax(state, result)
        rows = out[tile * QUERY_TILE : (tile + 1) * QUERY_TILE, :]
        nisa.dma_copy(dst=rows, src=result.reshape((QUERY_TILE, num_heads * head_dim)))
    return out


def _attend_tile(state, queries, source, place, scale):
    """Run one tile of queries over as many steps of keys as its rows can see."""
    k_cache, block_table = source[0], source[2]
    request, seen, live, layout, columns, buffers = place
    block_size, num_kv_heads = k_cache.shape[1], k_cache.shape[2]
    group = queries.shape[1] // num_kv_heads
    tiles = layout[0].shape[1]
    step = tiles * tile_tokens(block_size)
    max_steps = -(-block_table.shape[1] * block_size // step)

    # what the loop carries: table entries of the step, keys left for each row and for the tile
    entries = first_entries(request, block_table, layout)
    advance = entry_steps(tiles, block_size)
    seen_left = nl.ndarray(seen.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=seen_left, src=seen)
    live_left = nl.ndarray(live.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=live_left, src=live)

    def body(index):
        # load
        keys, values = gather_tokens(source, entries, live_left, layout, buffers)
        # compute
        mask = visible(columns, seen_left)
        for head in range(num_kv_heads):
            turned = transpose_keys(keys[:, :, head, :])
            for query_head in range(head * group, (head + 1) * group):
                add_keys(
                    head_of(state, query_head),
                    queries[:, query_head, :],
                    turned,
                    values[:, :, head, :],
                    mask,
                    scale,
                )
        # advance
        nisa.tensor_tensor(dst=entries, data1=entries, data2=advance, op=nl.add)
        nisa.tensor_scalar(dst=seen_left, data=seen_left, op0=nl.subtract, operand0=float(step))
        nisa.tensor_scalar(dst=live_left, data=live_left, op0=nl.subtract, operand0=float(step))

    nl.fori_loop(0, _count_steps(live, step, max_steps), body)


def _count_steps(live, step, max_steps):
    """Return a register with ceil(live / step), counted by comparisons: exact in any rounding."""
    starts = nl.ndarray((1, max_steps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=starts, pattern=[[step, max_steps]], offset=0, channel_multiplier=0)
    begun = nl.ndarray((1, max_steps), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=begun, data=starts, op0=nl.less, operand0=live[0:1, :])
    total = nl.ndarray((1, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_reduce(dst=total, op=nl.add, data=begun, axis=1)
    count = nl.ndarray((1, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=count, src=total)
    bound = nisa.register_alloc()
    nisa.register_load(bound, count)
    return bound


def _load_request(tile_request, tile):
    """Return [128, 1] int32: the tile's request in every partition."""
    request = nl.ndarray((QUERY_TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=request, src=tile_request.ap(pattern=[[0, QUERY_TILE], [1, 1]], offset=tile))
    return request


def _load_queries(q, tile):
    """Return [D, H, 128] of the tile's rows."""
    num_tokens, num_heads, head_dim = q.shape
    loaded = nl.ndarray((QUERY_TILE, num_heads * head_dim), dtype=q.dtype, buffer=nl.sbuf)
    flat = q.reshape((num_tokens, num_heads * head_dim))
    nisa.dma_copy(dst=loaded, src=flat[tile * QUERY_TILE : (tile + 1) * QUERY_TILE, :])
    return transpose_queries(loaded, num_heads, head_dim)


def _rows_see(lengths, request, tile):
    """Return how many keys each row sees, and how many any row sees: [128, 1] fp32 both."""
    context = _of_request(lengths[0], request)
    queried = _of_request(lengths[1], request)
    start = _of_request(lengths[2], request)

    # token j of each row, counted from the request's first row
    token = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=token, pattern=[[0, 1]], offset=tile * QUERY_TILE, channel_multiplier=1)
    nisa.tensor_tensor(dst=token, data1=token, data2=start, op=nl.subtract)

    # context + j + 1 where j < queried, else 0
    is_real = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_real, data1=token, data2=queried, op=nl.less)
    seen = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=seen, data=token, op0=nl.add, operand0=context, op1=nl.add, operand1=1.0)
    nisa.tensor_tensor(dst=seen, data1=seen, data2=is_real, op=nl.multiply)

    # context + min(queried, end of the tile)
    end = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=end,
        data=start,
        op0=nl.subtract,
        operand0=float((tile + 1) * QUERY_TILE),
        reverse0=True,
    )
    live = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=live, data1=end, data2=queried, op=nl.minimum)
    nisa.tensor_tensor(dst=live, data1=live, data2=context, op=nl.add)
    return seen, live


def _of_request(values, request):
    """Return [128, 1] fp32: the request's entry of [P, 1] int32 in HBM, 0 for request -1."""
    whole = nl.ndarray((QUERY_TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=whole, value=0)
    nisa.dma_copy(
        dst=whole,
        src=values.ap(
            pattern=[[1, QUERY_TILE], [1, 1]], offset=0, vector_offset=request, indirect_dim=0
        ),
        oob_mode=nisa.oob_mode.skip,
    )
    number = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=number, src=whole)
    return number
