"""Rows of a decode step on chip: queries by head, how many keys each sees, and results back.

Row (token, head of the group) of a request meets the keys of one key/value head.
"""

import nki.isa as nisa
import nki.language as nl

from .online_softmax import finish_softmax, transpose_queries


def load_queries(q, start, rows):
    """Return [D, H, rows] of the query rows from ``start`` on."""
    num_rows, num_heads, head_dim = q.shape
    loaded = nl.ndarray((rows, num_heads * head_dim), dtype=q.dtype, buffer=nl.sbuf)
    flat = q.reshape((num_rows, num_heads * head_dim))
    nisa.dma_copy(dst=loaded, src=flat[start : start + rows, :])
    return transpose_queries(loaded, num_heads, head_dim)


def group_queries(queries, num_kv_heads):
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


def rows_see(tokens, lengths, seq):
    """Return how many keys each row sees [rows, 1], and how many any row sees [128, 1]."""
    context, queried = lengths
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


def store_rows(out, state, start, query_len, v_scale):
    """Write the rows of one request, heads of a token side by side."""
    rows, num_kv_heads, head_dim = state[2].shape
    group = rows // query_len
    result = nl.ndarray((rows, num_kv_heads, head_dim), dtype=out.dtype, buffer=nl.sbuf)
    finish_softmax(state, result, v_scale)
    by_head = out.reshape((out.shape[0], num_kv_heads, group, head_dim))
    for token in range(query_len):
        nisa.dma_copy(
            dst=by_head[start + token].permute((1, 0, 2)),
            src=result[token * group : (token + 1) * group, :, :],
        )
