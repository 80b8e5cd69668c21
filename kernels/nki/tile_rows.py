"""Rows of a query tile of a prefill step: whose they are, how many keys they see, and for how long.

All values are columns of 128 rows, or the same value in every partition.
"""

import nki.isa as nisa
import nki.language as nl

from .windows import window_start

QUERY_TILE = 128
"""Rows of a query tile; requests start at multiples of it."""


def load_request(tile_request, tile):
    """Return [128, 1] int32: the tile's request in every partition."""
    request = nl.ndarray((QUERY_TILE, 1), dtype=nl.int32, buffer=nl.sbuf)
    nisa.dma_copy(dst=request, src=tile_request.ap(pattern=[[0, QUERY_TILE], [1, 1]], offset=tile))
    return request


def rows_see(lengths, request, tile):
    """Return how many keys each row sees, how many any row sees, and where the tile lies.

    The first two are [128, 1] fp32. The third is for first_seen: (the request's context, how far
    behind its first row the tile ends), both alike in every partition.
    """
    context = of_request(lengths[0], request)
    queried = of_request(lengths[1], request)
    start = of_request(lengths[2], request)

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
    return seen, live, (context, end)


def first_seen(place, window):
    """Return the first position that any row of the tile sees: that of its first row."""
    context, end = place
    position = nl.ndarray((QUERY_TILE, 1), dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_tensor(dst=position, data1=context, data2=end, op=nl.add)
    # the end of the tile is QUERY_TILE behind its first row
    return window_start(position, window + QUERY_TILE)


def of_request(values, request):
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


def count_steps(live, step, max_steps):
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
