"""Kernel that copies blocks of the KV cache, before requests that share one write to their own.

Which block goes where is decided on the host, and so is that no block is written twice.
"""

import nki
import nki.isa as nisa
import nki.language as nl

COPY_BYTES = 32768
"""Most bytes of one block that one partition takes in one copy."""


@nki.jit
def cache_block_copy(k_cache, v_cache, sources, destinations):
    """Copy blocks of both caches to other blocks, bit by bit.

    Dimensions:
        N blocks, B block size, K key/value heads, D head dim, M copies: any.

    Args:
        k_cache: [N, B, K, D] keys in HBM, changed in place.
        v_cache: [N, B, K, D] values in HBM, changed in place.
        sources: [M, 1] int32 in HBM, the blocks to copy; -1 copies nothing.
        destinations: [M, 1] int32 in HBM, where each goes; -1 exactly where the source is.

    Returns:
        k_cache and v_cache.

    Notes:
        Destinations other than -1 are distinct and no sources: copies may run in any order.
        Bytes moved are those of the blocks copied, twice: in and out. Both index tiles have 128
        rows, the surplus is -1.

    Pseudocode:
        for tile in tiles_of_128(M):
            for part of a block:
                rows = k_cache[sources[tile], part]            # skip -1
                k_cache[destinations[tile], part] = rows       # skip -1
                ... and the same for v
    """
    assert sources.shape[0] == destinations.shape[0]
    num_copies = sources.shape[0]
    for start in range(0, num_copies, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, num_copies - start)
        source = _load_ids(sources, start, count)
        destination = _load_ids(destinations, start, count)
        _copy(k_cache, source, destination)
        _copy(v_cache, source, destination)
    return k_cache, v_cache


def _load_ids(ids, start, count):
    index = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.int32, buffer=nl.sbuf)
    if count < nl.tile_size.pmax:
        nisa.memset(dst=index, value=-1)
    nisa.dma_copy(dst=index[0:count, :], src=ids[start : start + count, :])
    return index


def _copy(cache, source, destination):
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = block_size * num_kv_heads * head_dim
    by_block = cache.reshape((num_blocks, width))
    itemsize = 4 if cache.dtype == nl.float32 else 2
    step = min(width, COPY_BYTES // itemsize)
    for first in range(0, width, step):
        size = min(step, width - first)
        rows = nl.ndarray((nl.tile_size.pmax, size), dtype=cache.dtype, buffer=nl.sbuf)
        # a gather that skips leaves a row as it is, and its scatter skips it too
        nisa.memset(dst=rows, value=0.0)
        nisa.dma_copy(
            dst=rows,
            src=_part(by_block, source, (width, first, size)),
            oob_mode=nisa.oob_mode.skip,
        )
        nisa.dma_copy(
            dst=_part(by_block, destination, (width, first, size)),
            src=rows,
            oob_mode=nisa.oob_mode.skip,
        )


def _part(by_block, index, columns):
    width, first, size = columns
    return by_block.ap(
        pattern=[[width, index.shape[0]], [1, size]],
        offset=first,
        vector_offset=index,
        indirect_dim=0,
    )
