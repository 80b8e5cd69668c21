"""One step of online softmax on chip: query rows meet one tile of keys and values.

Shared by decode and prefill attention. It knows tiles in SBUF, neither blocks nor requests.
"""

import nki.isa as nisa
import nki.language as nl

MASKED = -3.4028235e38
"""Score of a key that a row does not see: fp32's lowest finite value, so no inf - inf."""

FIRST_MAX = -1.0e30
"""Running maximum before any key: finite, below any score, and so far above MASKED that the
exponential of their difference is exactly 0."""


def start_softmax(rows, num_heads, head_dim):
    """Return (running maxima, running sums, weighted values) of rows that saw no key yet.

    They are fp32: [rows, heads], [rows, heads] and [rows, heads, head_dim].
    """
    maxima = nl.ndarray((rows, num_heads), dtype=nl.float32, buffer=nl.sbuf)
    sums = nl.ndarray((rows, num_heads), dtype=nl.float32, buffer=nl.sbuf)
    values = nl.ndarray((rows, num_heads, head_dim), dtype=nl.float32, buffer=nl.sbuf)
    nisa.memset(dst=maxima, value=FIRST_MAX)
    nisa.memset(dst=sums, value=0.0)
    nisa.memset(dst=values, value=0.0)
    return maxima, sums, values


def head_of(state, head):
    """Return one head of the state: [rows, 1], [rows, 1] and [rows, head_dim]."""
    maxima, sums, values = state
    return maxima[:, head : head + 1], sums[:, head : head + 1], values[:, head, :]


def add_keys(state, queries, keys, values, mask, scoring):
    """Fold one tile of keys and values into the state of one head.

    A tile in which a row sees no key leaves the row's state as it is, to the last bit.

    Args:
        state: of head_of.
        queries: [D, rows], the contraction on partitions.
        keys: [D, n * 128], column (f, p).
        values: [128, n, D], row p of entry f belongs to column (f, p); unseen rows must be finite.
        mask: [rows, n * 128] uint8, 1 where the row sees the column.
        scoring: (scale, softcap), two floats; softcap 0 is none.
    """
    maxima, sums, weighted = state
    rows = queries.shape[1]
    # what is left to multiply scores by: capped ones are between -1 and 1
    scale = scoring[0] if scoring[1] == 0.0 else scoring[1]

    # scores, and the new maxima
    scores, tile_max = _masked_scores(queries, keys, mask, scoring)
    new_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=new_max, data1=maxima, data2=tile_max, op=nl.maximum)

    # what the state so far weighs: the difference is exactly 0 where the maximum stays
    drop = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=drop, data1=maxima, data2=new_max, op=nl.subtract)
    decay = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=decay, op=nl.exp, data=drop, scale=scale)
    nisa.tensor_copy(dst=maxima, src=new_max)

    # probabilities and their sum
    bias = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=bias, data=new_max, op0=nl.multiply, operand0=-scale)
    probabilities = nl.ndarray(scores.shape, dtype=queries.dtype, buffer=nl.sbuf)
    tile_sum = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(
        dst=probabilities,
        op=nl.exp,
        data=scores,
        bias=bias,
        scale=scale,
        reduce_op=nl.add,
        reduce_res=tile_sum,
        reduce_cmd=nisa.reduce_cmd.reset_reduce,
    )

    # state = state * decay + tile
    tile_values = _weigh(probabilities, values)
    nisa.tensor_scalar(
        dst=sums, data=sums, op0=nl.multiply, operand0=decay, op1=nl.add, operand1=tile_sum
    )
    nisa.scalar_tensor_tensor(
        dst=weighted,
        data=weighted,
        op0=nl.multiply,
        operand0=decay,
        op1=nl.add,
        operand1=tile_values,
    )


def finish_softmax(state, out, v_scale):
    """Write weighted values / sums * v_scale of all heads to out.

    A row that saw no key gets exact zeros.
    """
    sums, values = state[1], state[2]
    divisor = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    # without keys both are 0; the floor keeps 0 / 0 away and is below any sum of a row with keys
    nisa.tensor_scalar(dst=divisor, data=sums, op0=nl.maximum, operand0=1.0e-30)
    factor = nl.ndarray(sums.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.reciprocal(dst=factor, data=divisor)
    for head in range(sums.shape[1]):
        nisa.tensor_scalar(
            dst=out[:, head, :],
            data=values[:, head, :],
            op0=nl.multiply,
            operand0=factor[:, head : head + 1],
            op1=nl.multiply,
            operand1=v_scale,
        )


def transpose_queries(queries, num_heads, head_dim):
    """Return [D, heads, rows] of [rows, heads * D]."""
    rows = queries.shape[0]
    turned = nl.ndarray((head_dim, num_heads, rows), dtype=queries.dtype, buffer=nl.sbuf)
    for head in range(num_heads):
        columns = nl.ndarray((head_dim, rows), dtype=queries.dtype, buffer=nl.psum)
        nisa.nc_transpose(
            dst=columns,
            data=queries[:, head * head_dim : (head + 1) * head_dim],
            engine=nisa.engine.tensor,
        )
        nisa.tensor_copy(dst=turned[:, head, :], src=columns)
    return turned


def widened(tile, dtype):
    """Return a tile in the dtype of arithmetic; FP8 is cast on chip, where it costs no bytes."""
    if tile.dtype == dtype:
        return tile
    wide = nl.ndarray(tile.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_copy(dst=wide, src=tile)
    return wide


def transpose_keys(keys):
    """Return [D, n * 128], column (f, p), of keys [128, n, D].

    Columns do not mix, so what a stale row holds, NaN included, stays in its own column
    (NeuronCore-v3 and newer, where the Tensor Engine transposes bit by bit).
    """
    parts, count, head_dim = keys.shape
    turned = nl.ndarray((head_dim, count * parts), dtype=keys.dtype, buffer=nl.sbuf)
    # one copy out of PSUM for as many transposes as one bank of 2 KiB holds
    group = nl.tile_size.psum_bank_fmax // parts
    for first in range(0, count, group):
        width = min(group, count - first) * parts
        columns = nl.ndarray((head_dim, width), dtype=keys.dtype, buffer=nl.psum)
        for entry in range(width // parts):
            nisa.nc_transpose(
                dst=columns[:, entry * parts : (entry + 1) * parts],
                data=keys[:, first + entry, :],
                engine=nisa.engine.tensor,
            )
        nisa.tensor_copy(dst=turned[:, first * parts : first * parts + width], src=columns)
    return turned


def _masked_scores(queries, keys, mask, scoring):
    rows = queries.shape[1]
    columns = keys.shape[1]
    scores = nl.ndarray((rows, columns), dtype=nl.float32, buffer=nl.sbuf)
    tile_max = nl.ndarray((rows, 1), dtype=nl.float32, buffer=nl.sbuf)
    for first in range(0, columns, nl.tile_size.psum_bank_fmax):
        width = min(nl.tile_size.psum_bank_fmax, columns - first)
        products = nl.ndarray((rows, width), dtype=nl.float32, buffer=nl.psum)
        nisa.nc_matmul(
            dst=products,
            stationary=queries,
            moving=keys[:, first : first + width],
            accumulate=False,
        )
        # unseen scores are replaced, never multiplied: they may be anything, NaN included
        nisa.select_reduce(
            dst=scores[:, first : first + width],
            predicate=mask[:, first : first + width],
            on_true=_capped(products, scoring),
            on_false=MASKED,
            reduce_res=tile_max,
            reduce_cmd=nisa.reduce_cmd.reset_reduce if first == 0 else nisa.reduce_cmd.reduce,
            reduce_op=nl.maximum,
        )
    return scores, tile_max


def _capped(products, scoring):
    """Return tanh(products * scale / softcap); without a cap the products as they are."""
    scale, softcap = scoring
    if softcap == 0.0:
        return products
    capped = nl.ndarray(products.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.activation(dst=capped, op=nl.tanh, data=products, scale=scale / softcap)
    return capped


def _weigh(probabilities, values):
    """Return probabilities [rows, (f, p)] times values [p, f, D]: [rows, D] fp32 in PSUM."""
    rows = probabilities.shape[0]
    parts, count, head_dim = values.shape
    products = nl.ndarray((rows, head_dim), dtype=nl.float32, buffer=nl.psum)
    group = max(1, nl.tile_size.psum_bank_fmax // rows)
    for first in range(0, count, group):
        width = min(group, count - first)
        turned = nl.ndarray((parts, width, rows), dtype=probabilities.dtype, buffer=nl.psum)
        for entry in range(width):
            column = (first + entry) * parts
            nisa.nc_transpose(
                dst=turned[:, entry, :],
                data=probabilities[:, column : column + parts],
                engine=nisa.engine.tensor,
            )
        weights = nl.ndarray((parts, width, rows), dtype=probabilities.dtype, buffer=nl.sbuf)
        nisa.tensor_copy(dst=weights, src=turned)
        for entry in range(width):
            nisa.nc_matmul(
                dst=products,
                stationary=weights[:, entry, :],
                moving=values[:, first + entry, :],
                accumulate=first + entry > 0,
            )
    return products
