"""Gathers of single tokens by their slots in the cache: 128 tokens in one DMA instruction.

A step is a few tiles of tokens that follow each other in a request. A tile holds whole blocks,
as many as fit into 128 partitions: with block size 48 it has 96 tokens in 128 partitions, the
others hold no token. Tile f, partition p is position f * tile_tokens(B) + p of the step.
"""

import nki.isa as nisa
import nki.language as nl

from .masks import to_partitions, visible
from .online_softmax import widened

MAX_TILES = 4
"""Most tiles of tokens per step: together one PSUM bank of scores."""

STEP_BYTES = 32768
"""Most bytes of keys (and of values) that one partition takes in one step."""

NO_TOKEN = 1.0e9
"""Position of a partition or column without a token: beyond what any row sees."""


def tiles_per_step(k_cache, dtype):
    """Return how many tiles of tokens one step takes."""
    itemsize = 4 if dtype == nl.float32 else 2
    row_bytes = k_cache.shape[2] * k_cache.shape[3] * itemsize
    return max(1, min(MAX_TILES, STEP_BYTES // row_bytes))


def tile_tokens(block_size):
    """Return the tokens of a tile."""
    return nl.tile_size.pmax // block_size * block_size


def key_positions(rows, tiles, block_size):
    """Return [rows, tiles * 128] fp32: the position in the step of each column of keys."""
    parts = nl.tile_size.pmax
    span = tile_tokens(block_size)
    positions = nl.ndarray((rows, tiles, parts), dtype=nl.float32, buffer=nl.sbuf)
    if span < parts:
        nisa.memset(dst=positions, value=NO_TOKEN)
    nisa.iota(
        dst=positions[:, :, 0:span],
        pattern=[[span, tiles], [1, span]],
        offset=0,
        channel_multiplier=0,
    )
    return positions.reshape((rows, tiles * parts))


def token_layout(tiles, block_size):
    """Return what partition p of tile f stands for, in three tiles.

    They are [128, tiles] fp32 positions in the step, [128, tiles] int32 table entries of the step
    and [128, 1] int32 offsets in the block.
    """
    parts = nl.tile_size.pmax
    span = tile_tokens(block_size)
    blocks = span // block_size
    in_tile = _column([[1, span]], span, NO_TOKEN)
    block = _column([[1, blocks], [0, block_size]], span, 0.0)
    offset = _column([[0, blocks], [1, block_size]], span, 0.0)

    positions = nl.ndarray((parts, tiles), dtype=nl.float32, buffer=nl.sbuf)
    entries = nl.ndarray((parts, tiles), dtype=nl.int32, buffer=nl.sbuf)
    for tile in range(tiles):
        nisa.tensor_scalar(
            dst=positions[:, tile : tile + 1],
            data=in_tile,
            op0=nl.add,
            operand0=float(tile * span),
        )
        nisa.tensor_scalar(
            dst=entries[:, tile : tile + 1],
            data=block,
            op0=nl.add,
            operand0=float(tile * blocks),
        )
    offsets = nl.ndarray((parts, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=offsets, src=offset)
    return positions, entries, offsets


def token_buffers(tiles, k_cache):
    """Return a tile for gathered keys and one for values, [128, tiles, K, D], holding zeros.

    A gather that skips leaves what a partition held; selection takes that away, but reads it.
    """
    num_kv_heads, head_dim = k_cache.shape[2], k_cache.shape[3]
    shape = (nl.tile_size.pmax, tiles, num_kv_heads, head_dim)
    keys = nl.ndarray(shape, dtype=k_cache.dtype, buffer=nl.sbuf)
    values = nl.ndarray(shape, dtype=k_cache.dtype, buffer=nl.sbuf)
    nisa.memset(dst=keys, value=0.0)
    nisa.memset(dst=values, value=0.0)
    return keys, values


def first_entries(request, block_table, layout):
    """Return [128, tiles] int32: the entries of the flat table that the first step reads."""
    entries = nl.ndarray(layout[1].shape, dtype=nl.int32, buffer=nl.sbuf)
    row = nl.ndarray(request.shape, dtype=nl.int32, buffer=nl.sbuf)
    width = _filled(request.shape, block_table.shape[1])
    nisa.tensor_tensor(dst=row, data1=request, data2=width, op=nl.multiply)
    for tile in range(entries.shape[1]):
        nisa.tensor_tensor(
            dst=entries[:, tile : tile + 1],
            data1=row,
            data2=layout[1][:, tile : tile + 1],
            op=nl.add,
        )
    return entries


def step_blocks(tiles, block_size):
    """Return the blocks of a step, which are whole."""
    return tiles * (tile_tokens(block_size) // block_size)


def entry_steps(tiles, block_size):
    """Return [128, tiles] int32: how far the table entries move from step to step."""
    return _filled((nl.tile_size.pmax, tiles), step_blocks(tiles, block_size))


def gather_tokens(source, entries, live, layout, target):
    """Return keys and values [128, tiles, K, D] of one step.

    Args:
        source: k_cache [N, B, K, D], v_cache and block_table [P, W] in HBM.
        entries: [128, tiles] int32, entries of the flat table.
        live: bounds [128, 1] fp32 of the tokens of the step that there are to read.
        layout: of token_layout.
        target: (token_buffers, dtype of the result). Keys out of bounds are stale, values there
            are 0.
    """
    k_cache, v_cache, block_table = source
    keys, values = target[0]
    parts, tiles, num_kv_heads, head_dim = keys.shape
    width = num_kv_heads * head_dim
    is_live = visible(layout[0], live)
    for tile in range(tiles):
        ids = load_ids(block_table, entries[:, tile : tile + 1])
        slots = _slots(ids, layout[2], is_live[:, tile : tile + 1], k_cache.shape[1])
        _load_rows(keys, tile, k_cache, slots)
        _load_rows(values, tile, v_cache, slots)
    # what no row sees is replaced, never multiplied: it may be anything, NaN included
    selected = nl.ndarray(values.shape, dtype=target[1], buffer=nl.sbuf)
    nisa.select_reduce(
        dst=selected.reshape((parts, tiles, width)),
        predicate=is_live.expand_dim(2).broadcast(2, width),
        on_true=values.reshape((parts, tiles, width)),
        on_false=0.0,
    )
    return widened(keys, target[1]), selected


def _load_rows(rows, tile, cache, slots):
    nisa.dma_copy(
        dst=rows[:, tile, :, :].flatten_dims(1, 2),
        src=_rows(cache, slots),
        oob_mode=nisa.oob_mode.skip,
    )


def load_ids(block_table, entries):
    """Return [128, 1] int32 block ids; -1 where the entry lies outside the table."""
    num_seqs, width = block_table.shape
    flat = block_table.reshape((num_seqs * width, 1))
    index = _copy(entries)
    ids = _filled(entries.shape, -1)
    nisa.dma_copy(dst=ids, src=_rows(flat, index), oob_mode=nisa.oob_mode.skip)
    return ids


def _slots(ids, offsets, is_live, block_size):
    """Return [128, 1] int32 slots; -1 for tokens beyond and for blocks that are -1."""
    slots = nl.ndarray(ids.shape, dtype=nl.int32, buffer=nl.sbuf)
    size = _filled(ids.shape, block_size)
    nisa.tensor_tensor(dst=slots, data1=ids, data2=size, op=nl.multiply)
    nisa.tensor_tensor(dst=slots, data1=slots, data2=offsets, op=nl.add)
    # block -1 gives slots -B to -1
    skipped = _filled(ids.shape, -1)
    nisa.tensor_tensor(dst=slots, data1=slots, data2=skipped, op=nl.maximum)
    nisa.tensor_copy_predicated(dst=slots, src=-1, predicate=is_live, reverse_pred=True)
    return slots


def _rows(tensor, index):
    """Return the rows of an HBM tensor [..., width] that index [128, 1] names."""
    if len(tensor.shape) == 4:
        num_blocks, block_size, num_kv_heads, head_dim = tensor.shape
        width = num_kv_heads * head_dim
        tensor = tensor.reshape((num_blocks * block_size, width))
    width = tensor.shape[1]
    return tensor.ap(
        pattern=[[width, index.shape[0]], [1, width]],
        offset=0,
        vector_offset=index,
        indirect_dim=0,
    )


def _column(pattern, count, rest):
    """Return [128, 1] fp32: ``count`` values of an iota pattern, then ``rest``."""
    row = nl.ndarray((1, nl.tile_size.pmax), dtype=nl.float32, buffer=nl.sbuf)
    if count < nl.tile_size.pmax:
        nisa.memset(dst=row, value=rest)
    nisa.iota(dst=row[:, 0:count], pattern=pattern, offset=0, channel_multiplier=0)
    return to_partitions(row)


def _filled(shape, value):
    tile = nl.ndarray(shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.memset(dst=tile, value=value)
    return tile


def _copy(column):
    # indices of an indirect DMA are a tile of their own
    tile = nl.ndarray(column.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=tile, src=column)
    return tile
