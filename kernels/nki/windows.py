"""Where a sliding window begins: the first token, block or step of keys that there is to read.

A query at position t sees tokens ``t - window + 1`` to t. Block tables may leave out blocks before
the window of a step's first query: ``offsets`` says how many.
"""

import nki.isa as nisa
import nki.language as nl

from .masks import FOLD_BLOCKS, bounds_from, load_lengths, to_partitions
from .token_gather import load_ids


def window_start(positions, window):
    """Return the first token that queries at these positions see, fp32 in their shape."""
    start = nl.ndarray(positions.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=start,
        data=positions,
        op0=nl.add,
        operand0=float(1 - window),
        op1=nl.maximum,
        operand1=0.0,
    )
    return start


def whole_multiples(values, size):
    """Return floor(values / size) in fp32, for whole numbers from 0 to 2**22.

    Rounds (value - (size - 1) / 2) / size to the nearest integer, which is never close to a tie:
    casts of fp32 to integers round to nearest.
    """
    rounded = nl.ndarray(values.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=rounded,
        data=values,
        op0=nl.subtract,
        operand0=(size - 1) / 2,
        op1=nl.multiply,
        operand1=1.0 / size,
    )
    quotients = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=quotients, src=rounded)
    return quotients


def times(values, factor):
    """Return values * factor, fp32 in their shape."""
    product = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=product, data=values, op0=nl.multiply, operand0=float(factor))
    return product


def within_window(bounds, first, base, window):
    """Return (bounds of rows, bounds of keys) of a window, counted from ``base`` on.

    Args:
        bounds: (seen, live), how many keys each row sees and how many any row sees, both counted
            from position 0 and without a window.
        first: the first position that any row sees.
        base: the position from which to count, one value in every partition.
        window: tokens that a row sees.
    """
    seen = _less(bounds[0], base)
    hidden = bounds_from([seen], window)
    return [seen, hidden[0]], [_less(bounds[1], base), _less(first, base)]


def window_blocks(context, block_offset, block_table, sizes):
    """Return (first tokens, positions of their blocks, their table entries) and partition numbers.

    The first three are [128, S] fp32, of the window of each request's token 0; entries are those
    of the flat table.
    """
    window, block_size = sizes
    num_seqs, width = block_table.shape
    start = window_start(context, window)
    block = whole_multiples(start, block_size)
    base = times(block, block_size)
    rows = nl.ndarray(block.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=rows, pattern=[[width, num_seqs]], offset=0, channel_multiplier=0)
    entry = nl.ndarray(block.shape, dtype=nl.float32, buffer=nl.sbuf)
    offsets = load_lengths(block_offset, nl.tile_size.pmax)
    nisa.tensor_tensor(dst=entry, data1=block, data2=offsets, op=nl.subtract)
    nisa.tensor_tensor(dst=entry, data1=entry, data2=rows, op=nl.add)
    return start, base, entry, _partition_numbers()


def window_keys(block_table, blocks, bounds, seq, sizes):
    """Return block ids of each fold of a request's window, and bounds of rows and of keys.

    All count from the window's first block.

    Args:
        block_table: [S, W] int32 in HBM.
        blocks: of window_blocks.
        bounds: of decode_rows.rows_see.
        seq: the request.
        sizes: (query tokens per request, tokens of a window, tokens of a block).
    """
    query_len, window, block_size = sizes
    start, base, entry, numbers = blocks
    of_seq = base[:, seq : seq + 1]
    seen, live = within_window(bounds, start[:, seq : seq + 1], of_seq, window)
    place = (numbers, entry[:, seq : seq + 1])
    indices = []
    for fold in range(_window_folds(block_table, block_size, query_len, window)):
        indices.append(_window_index(block_table, place, fold, live[0], block_size))
    return indices, seen, live


def _window_folds(block_table, block_size, query_len, window):
    """Return the folds of 128 blocks that hold what the queries of a request see."""
    # the most blocks that so many tokens in a row can touch
    blocks = (window + query_len - 1 + block_size - 2) // block_size + 1
    return -(-min(blocks, block_table.shape[1]) // FOLD_BLOCKS)


def _partition_numbers():
    """Return [128, 1] fp32: the number of each partition."""
    row = nl.ndarray((1, FOLD_BLOCKS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=row, pattern=[[1, FOLD_BLOCKS]], offset=0, channel_multiplier=0)
    return to_partitions(row)


def _window_index(block_table, place, fold, live, block_size):
    """Return [128, 1] int32 block ids of one fold, counted from the window's first block.

    Args:
        block_table: [S, W] int32 in HBM.
        place: (partition numbers, table entry of the window's first block [128, 1] fp32).
        fold: which 128 blocks of the window.
        live: [128, 1] fp32, how many tokens there are from the window's first block on.
        block_size: tokens per block. Blocks that begin beyond ``live`` are -1.
    """
    numbers, entry = place
    begins = nl.ndarray(numbers.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=begins,
        data=numbers,
        op0=nl.add,
        operand0=float(fold * FOLD_BLOCKS),
        op1=nl.multiply,
        operand1=float(block_size),
    )
    is_live = nl.ndarray(numbers.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=is_live, data1=begins, data2=live, op=nl.less)
    # (entry + 1) * is_live - 1: the entry, or -1
    entries = nl.ndarray(numbers.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=entries,
        data=numbers,
        op0=nl.add,
        operand0=entry,
        op1=nl.add,
        operand1=float(fold * FOLD_BLOCKS + 1),
    )
    nisa.tensor_tensor(dst=entries, data1=entries, data2=is_live, op=nl.multiply)
    index = nl.ndarray(numbers.shape, dtype=nl.int32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=index, data=entries, op0=nl.subtract, operand0=1.0)
    return load_ids(block_table, index)


def _less(values, base):
    difference = nl.ndarray(values.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=difference, data=values, op0=nl.subtract, operand0=base[0 : values.shape[0], :]
    )
    return difference
