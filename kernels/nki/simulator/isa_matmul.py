"""The Tensor Engine: ``nc_matmul`` and, with the Vector Engine, ``nc_transpose``."""

from __future__ import annotations

import numpy as np

from . import enums
from .access import (
    WRITTEN,
    NkiInstruction,
    read,
    read_float32,
    record,
    resolved,
    tile,
    window,
    write,
)
from .dtypes import FLOATS, FP8, from_float32, to_float32
from .enums import MemoryRegion, engine, matmul_perf_mode, nc_version
from .errors import fail
from .generation import NUM_PARTITIONS, PSUM_BANK_BYTES, Generation
from .machine import tick
from .tensor import NkiTensor
from .view import View

SBUF = (MemoryRegion.sbuf,)
PSUM = (MemoryRegion.psum,)
MAX_VECTOR_TRANSPOSE = 32


def nc_matmul(
    dst: NkiTensor,
    stationary: NkiTensor,
    moving: NkiTensor,
    is_stationary_onezero: bool = False,
    is_moving_onezero: bool = False,
    is_transpose: bool = False,
    accumulate: bool | None = None,
    tile_position: tuple[int, ...] = (),
    tile_size: tuple[int, ...] = (),
    perf_mode: matmul_perf_mode = matmul_perf_mode.none,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``dst = stationary.T @ moving`` in fp32, or add it to what a matmul left in ``dst``.

    Shapes: stationary [K, M], moving [K, N], dst [M, N] in PSUM; K, M <= 128. Without
    ``accumulate`` the first write of a location overwrites and later ones accumulate.
    Products are summed in fp64 and rounded to fp32 once: in fp32, a BLAS that groups the terms
    of an element by its place in the matrix would let the place show in the last bit.
    """
    core = tick()
    tile(dst, "dst", PSUM)
    tile(stationary, "stationary", SBUF)
    tile(moving, "moving", SBUF)
    if is_transpose or perf_mode is not matmul_perf_mode.none:
        fail("is_transpose and perf_mode are not simulated; nc_transpose transposes")
    _check_dtypes(dst, stationary, moving, core.generation)
    _check_sizes(dst, stationary, moving, core.generation)
    _check_tiling(stationary, tile_position, tile_size)
    with np.errstate(all="ignore"):
        left = read_float32(stationary, "stationary").astype(np.float64)
        wide = left.T @ read_float32(moving, "moving").astype(np.float64)
        product = wide.astype(np.float32)
        if _accumulates(dst, accumulate, core.generation):
            product = to_float32(window(resolved(dst, "dst"))).reshape(product.shape) + product
    write(dst, from_float32(product, dst.dtype), by_matmul=True)
    operands: dict[str, View] = {"dst": dst, "stationary": stationary, "moving": moving}
    return record(core, "tensor", name, operands, moving.size // moving.shape[0])


def _check_dtypes(dst: View, stationary: View, moving: View, generation: Generation) -> None:
    dtypes = {"stationary": stationary.dtype, "moving": moving.dtype}
    found = set(dtypes.values())
    if not found <= FLOATS:
        fail(f"operands must be floats, got {dtypes}")
    if "float32" in found and len(found) > 1:
        fail(f"float32 does not mix with other dtypes, got {dtypes}")
    if "float8_e4m3fn" in found and not generation.at_least(nc_version.gen4):
        fail(f"float8_e4m3fn needs trn3, the target is {generation.name}")
    if {"float8_e4m3", "float8_e4m3fn"} <= found:
        fail(f"the two formats of float8_e4m3 do not mix, got {dtypes}")
    narrow = dst.dtype == "bfloat16" and generation.at_least(nc_version.gen4)
    if dst.dtype != "float32" and not narrow:
        fail(f"dst must be float32 (or bfloat16 on trn3), got {dst!r}")


def _check_sizes(dst: View, stationary: View, moving: View, generation: Generation) -> None:
    rows, columns = stationary.size // stationary.shape[0], moving.size // moving.shape[0]
    if stationary.shape[0] != moving.shape[0]:
        fail(f"contraction sizes differ: stationary {stationary.shape}, moving {moving.shape}")
    if rows > NUM_PARTITIONS:
        fail(f"stationary has {rows} columns, at most {NUM_PARTITIONS} fit")
    most = generation.moving_bytes // dst.itemsize
    if columns > most:
        fail(f"moving has {columns} columns, at most {most} fit on {generation.name}")
    if (dst.shape[0], dst.size // dst.shape[0]) != (rows, columns):
        fail(f"dst must be [{rows}, {columns}], got {dst.shape}")
    if generation.at_least(nc_version.gen4):
        return
    first = dst.offset * dst.itemsize % dst.storage.row_bytes
    reach = sum(step * (n - 1) for step, n in zip(dst.strides[1:], dst.shape[1:], strict=True))
    last = first + reach * dst.itemsize
    if first // PSUM_BANK_BYTES != last // PSUM_BANK_BYTES:
        fail(f"dst crosses a PSUM bank: bytes {first} to {last} of its partition")


def _check_tiling(stationary: View, position: tuple[int, ...], size: tuple[int, ...]) -> None:
    if bool(position) != bool(size):
        fail(f"tile_position {position} and tile_size {size} go together")
    if not size:
        return
    if len(size) != 2 or len(position) != 2 or any(n not in (32, 64, 128) for n in size):
        fail(f"tile_size {size} must be two of 32, 64, 128 and tile_position {position} a pair")
    rows, columns = stationary.shape[0], stationary.size // stationary.shape[0]
    if rows > size[0] or columns > size[1]:
        fail(f"stationary [{rows}, {columns}] exceeds tile_size {size}")
    for start, extent in zip(position, size, strict=True):
        if start % extent or start + extent > NUM_PARTITIONS:
            fail(f"tile_position {position} is no multiple of tile_size {size} within 128")


def _accumulates(dst: View, accumulate: bool | None, generation: Generation) -> bool:
    """Return whether the product is added, after checking that there is something to add to."""
    if accumulate is False:
        return False
    direct = resolved(dst, "dst")
    full = WRITTEN[direct.itemsize]
    written = window(direct, direct.storage.written) == full
    if accumulate is None and not written.any():
        return False
    if not written.all():
        missing = int((~written).sum())
        fail(f"accumulates onto {missing} of {written.size} unwritten elements of {dst!r}")
    by_matmul = window(direct, direct.storage.by_matmul) == full
    if not by_matmul.all() and not generation.at_least(nc_version.gen4):
        fail(f"accumulates onto what no matmul wrote in {dst!r}; undefined on {generation.name}")
    return True


def nc_transpose(
    dst: NkiTensor, data: NkiTensor, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Exchange partitions and the flattened free dimensions, bit by bit.

    The Tensor Engine moves up to [128, 128] from SBUF to PSUM, the Vector Engine up to [32, 32].
    """
    core = tick()
    tile(dst, "dst")
    tile(data, "data")
    rows, columns = data.shape[0], data.size // data.shape[0]
    if (dst.shape[0], dst.size // dst.shape[0]) != (columns, rows):
        fail(f"dst must be [{columns}, {rows}], got {dst!r}")
    if dst.dtype != data.dtype:
        fail(f"dst and data must have one dtype, got {dst.dtype} and {data.dtype}")
    by_tensor = _transposes_on_tensor(dst, data, engine)
    if by_tensor and data.dtype in FP8:
        fail(f"the tensor engine does not transpose {data.dtype}")
    values = read(data, "data").reshape(rows, columns)
    exact = not by_tensor or core.generation.at_least(nc_version.gen3)
    if not exact and not np.isfinite(to_float32(values)).all():
        fail("the tensor engine of trn1 does not transpose NaN or infinity exactly")
    write(dst, values.T, by_matmul=by_tensor)
    used = "tensor" if by_tensor else "vector"
    return record(core, used, name, {"dst": dst, "data": data}, columns if by_tensor else 0)


def _transposes_on_tensor(dst: View, data: View, chosen: engine) -> bool:
    fits = data.buffer is MemoryRegion.sbuf and dst.buffer is MemoryRegion.psum
    by_tensor = chosen is enums.engine.tensor or (chosen is enums.engine.unknown and fits)
    if chosen not in (enums.engine.unknown, enums.engine.tensor, enums.engine.vector):
        fail(f"engine must be tensor or vector, got {chosen}")
    if by_tensor and not fits:
        fail(f"the tensor engine transposes from sbuf to psum, got {data!r} and {dst!r}")
    limit = NUM_PARTITIONS if by_tensor else MAX_VECTOR_TRANSPOSE
    columns = data.size // data.shape[0]
    if data.shape[0] > limit or columns > limit:
        used = "tensor" if by_tensor else "vector"
        fail(f"the {used} engine transposes up to [{limit}, {limit}], got {data!r}")
    return by_tensor
