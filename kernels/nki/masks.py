"""Masks of attention over the block KV cache, generated on chip.

A mask is one comparison: the position of a key is below the number of keys that a query row may
see; with a sliding window a second one, against the first of them. Positions come from iota, in
the order in which gathered blocks lie in the key tile. The kernels here show these masks as
tensors; attention uses the same functions and never writes one to HBM.

Bounds are a list of fp32 columns: how many keys a row sees up to, and with a window the first.
"""

import nki
import nki.isa as nisa
import nki.language as nl

FOLD_BLOCKS = 128
"""Blocks gathered at once, one per partition."""


@nki.jit
def mask_cache(context_lens, num_heads, query_len, context_size, block_size):
    """Generate the mask of the keys that were in the cache before this step.

    Dimensions:
        S requests, H heads, Q query tokens per request, C positions: H*Q <= 128 and C a multiple
        of 128 blocks.

    Args:
        context_lens: [S, 1] int32 in HBM, tokens of each request in the cache.
        num_heads: H.
        query_len: Q.
        context_size: C.
        block_size: tokens per block, which fixes the order of columns on chip.

    Returns:
        [S, H, Q, C] uint8 in HBM, 1 where the position is below the request's length.

    Notes:
        Element for element what mask_oracles.mask_cache returns.

    Pseudocode:
        out[s, h, j, c] = c < context_lens[s]
    """
    num_seqs = context_lens.shape[0]
    rows = num_heads * query_len
    out = nl.ndarray(
        (num_seqs, num_heads, query_len, context_size), dtype=nl.uint8, buffer=nl.shared_hbm
    )
    by_row = out.reshape((num_seqs, rows, context_size))
    fold_size = FOLD_BLOCKS * block_size
    step = min(block_size, 16)

    # load
    lens = load_lengths(context_lens, rows)
    positions = fold_positions(rows, step, block_size)
    for seq in range(num_seqs):
        for fold in range(context_size // fold_size):
            in_fold = by_row[seq][:, fold * fold_size : (fold + 1) * fold_size]
            in_blocks = in_fold.reshape_dim(1, (FOLD_BLOCKS, block_size))
            for first in range(0, block_size, step):
                count = min(step, block_size - first)
                # compute
                seen = bounds_from([lens[:, seq : seq + 1]], fold * fold_size + first)
                mask = visible(positions[:, 0:count, :], seen)
                # store, from (offset, block) order on chip to the order of positions
                columns = in_blocks[:, :, first : first + count].permute((0, 2, 1))
                nisa.dma_copy(dst=columns, src=mask)
    return out


@nki.jit
def mask_active(context_lens, num_heads, query_len):
    """Generate the mask of the keys of this step: each token sees itself and those before it.

    Dimensions:
        S requests, H heads, Q query tokens per request: H*Q <= 128.

    Args:
        context_lens: [S, 1] int32 in HBM, for the number of requests only.
        num_heads: H.
        query_len: Q.

    Returns:
        [S, H, Q, Q] uint8 in HBM, lower-triangular in its last two dimensions.

    Notes:
        All ones only for Q = 1: a draft may not see the drafts after it, or verifying it would
        accept what the model alone would not say. Element for element what
        mask_oracles.mask_active returns.

    Pseudocode:
        out[s, h, j, i] = i < j + 1
    """
    num_seqs = context_lens.shape[0]
    out = nl.ndarray(
        (num_seqs, num_heads, query_len, query_len), dtype=nl.uint8, buffer=nl.shared_hbm
    )

    # compute
    tokens = row_tokens(query_len, num_heads)
    seen = nl.ndarray(tokens.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=seen, data=tokens, op0=nl.add, operand0=1.0)
    positions = nl.ndarray((query_len * num_heads, query_len), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=positions, pattern=[[1, query_len]], offset=0, channel_multiplier=0)
    mask = visible(positions, [seen])

    # store
    for seq in range(num_seqs):
        for token in range(query_len):
            rows = mask[token * num_heads : (token + 1) * num_heads, :]
            nisa.dma_copy(dst=out[seq][:, token, :], src=rows)
    return out


def fold_positions(rows, num_offsets, block_size):
    """Return [rows, num_offsets, 128] fp32: where each column's token lies in its fold.

    Gathered blocks lie one per partition, so transposing token f of every block gives 128 columns:
    column (f, p) holds token p * block_size + f.
    """
    positions = nl.ndarray((rows, num_offsets, FOLD_BLOCKS), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(
        dst=positions,
        pattern=[[1, num_offsets], [block_size, FOLD_BLOCKS]],
        offset=0,
        channel_multiplier=0,
    )
    return positions


def block_positions(num_offsets, block_size):
    """Return [128, num_offsets] fp32: the same for keys before transposing, a block per partition.

    Row p, column f holds token p * block_size + f of the fold.
    """
    positions = nl.ndarray((FOLD_BLOCKS, num_offsets), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=positions, pattern=[[1, num_offsets]], offset=0, channel_multiplier=block_size)
    return positions


def row_tokens(query_len, group):
    """Return [query_len * group, 1] fp32: the query token of row (token, head of the group)."""
    rows = query_len * group
    tokens = nl.ndarray((1, query_len, group), dtype=nl.float32, buffer=nl.sbuf)
    nisa.iota(dst=tokens, pattern=[[1, query_len], [0, group]], offset=0, channel_multiplier=0)
    return to_partitions(tokens.reshape((1, rows)))


def to_partitions(row):
    """Return a [1, n] fp32 row as a [n, 1] column."""
    count = row.shape[1]
    turned = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.psum)
    nisa.nc_transpose(dst=turned, data=row, engine=nisa.engine.tensor)
    column = nl.ndarray((count, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=column, src=turned)
    return column


def load_lengths(lengths, rows):
    """Return [S, 1] int32 lengths in HBM as [rows, S] fp32, the same in every partition."""
    count = lengths.shape[0]
    whole = nl.ndarray((rows, count), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=whole, src=lengths.ap(pattern=[[0, rows], [1, count]], offset=0))
    floats = nl.ndarray((rows, count), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_copy(dst=floats, src=whole)
    return floats


def bounds_from(bounds, first):
    """Return the bounds counted from position ``first`` on: [rows, 1] fp32 each."""
    rest = []
    for bound in bounds:
        moved = nl.ndarray(bound.shape, dtype=nl.float32, buffer=nl.sbuf)
        nisa.tensor_scalar(dst=moved, data=bound, op0=nl.subtract, operand0=float(first))
        rest.append(moved)
    return rest


def visible(positions, bounds):
    """Return uint8 1 where a position is within the bounds of its row; the shape of positions."""
    mask = nl.ndarray(positions.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=mask, data=positions, op0=nl.less, operand0=bounds[0])
    if len(bounds) == 1:
        return mask
    inside = nl.ndarray(positions.shape, dtype=nl.uint8, buffer=nl.sbuf)
    nisa.scalar_tensor_tensor(
        dst=inside,
        data=positions,
        op0=nl.greater_equal,
        operand0=bounds[1],
        op1=nl.multiply,
        operand1=mask,
    )
    return inside
