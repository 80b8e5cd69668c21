"""Gathers of whole folds of blocks: tokens of up to 128 blocks in one DMA instruction.

Two pathways of the same results: one skips unused table entries, one transposes keys on the way.
"""

import nki.isa as nisa
import nki.language as nl

from .masks import FOLD_BLOCKS
from .online_softmax import transpose_keys, widened

GATHER_BYTES = 16384
"""Most bytes of keys (and of values) that one partition takes in one gather."""

MAX_OFFSETS = 16
"""Most tokens of a block in one tile: 16 * 128 scores per row."""


def offsets_per_tile(k_cache, dtype):
    """Return how many tokens of each block one tile takes."""
    block_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    itemsize = 4 if dtype == nl.float32 else 2
    fitting = GATHER_BYTES // (num_kv_heads * head_dim * itemsize)
    return max(1, min(block_size, MAX_OFFSETS, fitting))


def load_table(block_table):
    """Return [128, S * folds] int32: a column per fold, in table order."""
    num_seqs, width = block_table.shape
    columns = num_seqs * (width // FOLD_BLOCKS)
    ids = nl.ndarray((FOLD_BLOCKS, columns), dtype=nl.int32, buffer=nl.sbuf)
    by_column = block_table.reshape((columns, FOLD_BLOCKS))
    nisa.dma_copy(dst=ids, src=by_column.permute((1, 0)))
    return ids


def fold_index(block_ids, column):
    """Return [128, 1] int32 block ids of one fold: indices of a DMA are a tile of their own."""
    index = nl.ndarray((FOLD_BLOCKS, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=index, src=block_ids[:, column : column + 1])
    return index


def staging_buffers(shape, dtype):
    """Return a tile for gathered keys and one for values, [128, n, K, D], holding zeros.

    A gather that skips leaves what a partition held: rows of an earlier fold or request, or, the
    first time, what is written here. Selection takes stale values away, but reads them: SBUF that
    nobody wrote may be anything, and 0 * NaN is NaN.
    """
    keys = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    values = nl.ndarray(shape, dtype=dtype, buffer=nl.sbuf)
    nisa.memset(dst=keys, value=0.0)
    nisa.memset(dst=values, value=0.0)
    return keys, values


def gather(k_cache, v_cache, index, tokens, buffers, dtype):
    """Return keys [D, n * 128] of dtype per head and values [128, n, K, D]; -1 moves nothing."""
    first, count = tokens
    keys = buffers[0][:, 0:count, :, :]
    values = buffers[1][:, 0:count, :, :]
    nisa.dma_copy(dst=keys, src=_blocks(k_cache, index, first, count), oob_mode=nisa.oob_mode.skip)
    nisa.dma_copy(
        dst=values, src=_blocks(v_cache, index, first, count), oob_mode=nisa.oob_mode.skip
    )
    wide = widened(keys, dtype)
    turned = []
    for head in range(k_cache.shape[2]):
        turned.append(transpose_keys(wide[:, :, head, :]))
    return turned, values


def gather_transposed(k_cache, v_cache, index, tokens, buffers, dtype):
    """Return the same of a cache that is of dtype; -1 reads block 0."""
    first, count = tokens
    block_size, num_kv_heads, head_dim = k_cache.shape[1], k_cache.shape[2], k_cache.shape[3]
    saturated = nl.ndarray((FOLD_BLOCKS, 1), dtype=nl.uint32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=saturated, src=index, engine=nisa.engine.vector)
    values = buffers[1][:, 0:count, :, :]
    nisa.dma_copy(dst=values, src=_blocks(v_cache, saturated, first, count))
    turned = []
    token_size = num_kv_heads * head_dim
    for head in range(num_kv_heads):
        keys = nl.ndarray((head_dim, count, 1, FOLD_BLOCKS), dtype=dtype, buffer=nl.sbuf)
        source = k_cache.ap(
            pattern=[
                [block_size * token_size, FOLD_BLOCKS],
                [token_size, count],
                [head_dim, 1],
                [1, head_dim],
            ],
            offset=first * token_size + head * head_dim,
            vector_offset=saturated,
            indirect_dim=0,
        )
        nisa.dma_transpose(dst=keys, src=source, axes=(3, 1, 2, 0))
        turned.append(keys.reshape((head_dim, count * FOLD_BLOCKS)))
    return turned, values


def _blocks(cache, index, first, count):
    """Return [128, count, K, D]: some tokens of the blocks that index names, contiguous each."""
    block_size, num_kv_heads, head_dim = cache.shape[1], cache.shape[2], cache.shape[3]
    token_size = num_kv_heads * head_dim
    return cache.ap(
        pattern=[
            [block_size * token_size, FOLD_BLOCKS],
            [token_size, count],
            [head_dim, num_kv_heads],
            [1, head_dim],
        ],
        offset=first * token_size,
        vector_offset=index,
        indirect_dim=0,
    )


def select_live(values, is_live, dtype):
    """Return the values in dtype, every row that no query of the request sees replaced by 0."""
    parts, count, num_kv_heads, head_dim = values.shape
    selected = nl.ndarray(values.shape, dtype=dtype, buffer=nl.sbuf)
    width = num_kv_heads * head_dim
    nisa.select_reduce(
        dst=selected.reshape((parts, count, width)),
        predicate=is_live.expand_dim(2).broadcast(2, width),
        on_true=values.flatten_dims(2, 3),
        on_false=0.0,
    )
    return selected
