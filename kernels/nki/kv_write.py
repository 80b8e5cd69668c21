"""Kernels that write new keys and values into the block KV cache by slot.

They own the scatter alone: which token goes to which slot is decided on the host, from the block
table as it was before unused entries became -1.
"""

import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kv_cache_write(k_cache, v_cache, k_new, v_new, slots):
    """Write new keys and values into their slots of the cache, bit by bit.

    Dimensions:
        N blocks, B block size, K key/value heads, D head dim, T tokens: any. K*D elements must
        fit in one partition of SBUF.

    Args:
        k_cache: [N, B, K, D] keys in HBM, changed in place.
        v_cache: [N, B, K, D] values in HBM, changed in place.
        k_new: [T, K, D] keys in HBM, in the cache's dtype.
        v_new: [T, K, D] values in HBM, in the cache's dtype.
        slots: [T, 1] int32 in HBM, block id * B + position % B; -1 writes nothing.

    Returns:
        k_cache and v_cache.

    Notes:
        Slots other than -1 are distinct and below N*B. Index tiles always have 128 rows, the
        surplus is -1: skipping is free and the DMA engines get one shape of descriptors.
        A copy in one dtype is exact, NaN payloads included.

    Pseudocode:
        for tile in tiles_of_128(T):
            rows, index = load(k_new[tile]), pad(slots[tile], -1)
            k_cache.rows[index] = rows    # skip where index is out of bounds
            ... and the same for v
    """
    assert slots.shape[0] == k_new.shape[0]
    assert k_new.dtype == k_cache.dtype
    assert v_new.dtype == v_cache.dtype
    num_tokens = k_new.shape[0]
    for start in range(0, num_tokens, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, num_tokens - start)
        index = _load_slots(slots, start, count)
        _scatter(k_cache, _load_rows(k_new, start, count), index)
        _scatter(v_cache, _load_rows(v_new, start, count), index)
    return k_cache, v_cache


@nki.jit
def kv_cache_write_fp8(k_cache, v_cache, k_new, v_new, slots, k_scale, v_scale):
    """Quantize new keys and values to FP8 and write them into their slots of the cache.

    Dimensions:
        As in kv_cache_write.

    Args:
        k_cache: [N, B, K, D] keys in HBM, float8_e4m3 (trn2) or float8_e4m3fn (trn3).
        v_cache: [N, B, K, D] values in HBM, the same dtype.
        k_new: [T, K, D] keys in HBM, bf16 or fp32.
        v_new: [T, K, D] values in HBM, bf16 or fp32.
        slots: [T, 1] int32 in HBM, as in kv_cache_write.
        k_scale: positive float, what stored keys are multiplied by when they are read.
        v_scale: positive float, the same for values.

    Returns:
        k_cache and v_cache.

    Notes:
        Stores round(clamp(x / scale)): the clamp is 240 for float8_e4m3 and 448 for
        float8_e4m3fn, the largest finite values. trn2 has the first format only (the compiler's
        error EVRF051), and what is beyond 240 becomes NaN there (the vendor's guide to custom
        quantization). Up to 240 both formats have the same bits, so a cache that trn2 wrote is
        also a float8_e4m3fn cache; NaN alone differs. The engines have no division: x is
        multiplied by the fp32 reciprocal of the scale and rounded once, to nearest even.

    Pseudocode:
        for tile in tiles_of_128(T):
            rows = clamp(k_new[tile] * (1 / k_scale), -limit, limit)
            k_cache.rows[pad(slots[tile], -1)] = fp8(rows)
            ... and the same for v
    """
    assert slots.shape[0] == k_new.shape[0]
    num_tokens = k_new.shape[0]
    for start in range(0, num_tokens, nl.tile_size.pmax):
        count = min(nl.tile_size.pmax, num_tokens - start)
        index = _load_slots(slots, start, count)
        k_rows = _quantize(_load_rows(k_new, start, count), 1.0 / k_scale, k_cache.dtype)
        v_rows = _quantize(_load_rows(v_new, start, count), 1.0 / v_scale, v_cache.dtype)
        _scatter(k_cache, k_rows, index)
        _scatter(v_cache, v_rows, index)
    return k_cache, v_cache


def _load_slots(slots, start, count):
    index = nl.ndarray((nl.tile_size.pmax, 1), dtype=nl.int32, buffer=nl.sbuf)
    if count < nl.tile_size.pmax:
        nisa.memset(dst=index, value=-1)
    nisa.dma_copy(dst=index[0:count, :], src=slots[start : start + count, :])
    return index


def _load_rows(new, start, count):
    num_tokens, num_kv_heads, head_dim = new.shape
    width = num_kv_heads * head_dim
    rows = nl.ndarray((nl.tile_size.pmax, width), dtype=new.dtype, buffer=nl.sbuf)
    if count < nl.tile_size.pmax:
        # rows of surplus indices are never moved, but a later instruction may read them
        nisa.memset(dst=rows, value=0.0)
    flat = new.reshape((num_tokens, width))
    nisa.dma_copy(dst=rows[0:count, :], src=flat[start : start + count, :])
    return rows


def _quantize(rows, factor, dtype):
    limit = 448.0 if dtype == nl.float8_e4m3fn else 240.0
    scaled = nl.ndarray(rows.shape, dtype=nl.float32, buffer=nl.sbuf)
    nisa.tensor_scalar(
        dst=scaled, data=rows, op0=nl.multiply, operand0=factor, op1=nl.minimum, operand1=limit
    )
    quantized = nl.ndarray(rows.shape, dtype=dtype, buffer=nl.sbuf)
    nisa.tensor_scalar(dst=quantized, data=scaled, op0=nl.maximum, operand0=-limit)
    return quantized


def _scatter(cache, rows, index):
    num_blocks, block_size, num_kv_heads, head_dim = cache.shape
    width = num_kv_heads * head_dim
    by_slot = cache.reshape((num_blocks * block_size, width))
    nisa.dma_copy(
        dst=by_slot.ap(
            pattern=[[width, index.shape[0]], [1, width]],
            offset=0,
            vector_offset=index,
            indirect_dim=0,
        ),
        src=rows,
        oob_mode=nisa.oob_mode.skip,
    )
