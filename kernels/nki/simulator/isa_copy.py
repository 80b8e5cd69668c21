"""Copies and generated values: memset, tensor_copy, tensor_copy_predicated, iota, affine_select."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import enums
from .access import (
    NkiInstruction,
    is_integer,
    read,
    record,
    refuse_broadcast,
    resolved,
    same_size,
    tile,
    writable,
    write,
    write_float32,
)
from .access import mark_written as _mark_written
from .dtypes import FLOATS, Array, convert, from_float32, numpy_dtype, to_float32
from .enums import MemoryRegion, engine, nc_version
from .errors import fail
from .machine import tick
from .ops import TOKENS, Op, checked_op, equal
from .tensor import NkiTensor
from .view import View

SBUF = (MemoryRegion.sbuf,)
MAX_FREE_DIMS = 3
MAX_PATTERN = 4
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")


def engine_of(chosen: engine, allowed: tuple[engine, ...], *views: View) -> str:
    """Return the engine that runs an instruction; the first allowed one if none is chosen.

    Raises:
        SimulationError: the instruction does not run there, or GpSimd would access PSUM.
    """
    if chosen is not engine.unknown and chosen not in allowed:
        fail(f"runs on {' or '.join(e.name for e in allowed)}, got {chosen}")
    used = allowed[0] if chosen is engine.unknown else chosen
    in_psum = [view for view in views if view.buffer is MemoryRegion.psum]
    if used is engine.gpsimd and in_psum:
        fail(f"gpsimd cannot access psum, got {in_psum[0]!r}")
    return used.name


def memset(
    dst: NkiTensor, value: float, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Fill a tile with a constant, which must be an integer if the tile is one."""
    core = tick()
    tile(dst, "dst")
    if isinstance(value, bool) or not isinstance(value, int | float):
        fail(f"value must be a number, got {value!r}")
    if is_integer(dst):
        limits = np.iinfo(np.uint8 if dst.dtype == "bool" else numpy_dtype(dst.dtype))
        if not isinstance(value, int) or not limits.min <= value <= limits.max:
            fail(f"value {value!r} is no {dst.dtype}")
        filled = np.full(dst.shape, value, numpy_dtype(dst.dtype))
    else:
        filled = from_float32(np.full(dst.shape, value, np.float32), dst.dtype)
    allowed = (enums.engine.vector, enums.engine.gpsimd)
    used = engine_of(engine, allowed, dst)
    write(dst, filled)
    return record(core, used, name, {"dst": dst})


def tensor_copy(
    dst: NkiTensor, src: NkiTensor, engine: engine = engine.unknown, name: str | None = None
) -> NkiInstruction:
    """Copy a tile on chip: bit by bit between equal dtypes, by way of fp32 between others."""
    core = tick()
    tile(dst, "dst")
    tile(src, "src")
    same_size(dst=dst, src=src)
    allowed = [enums.engine.vector, enums.engine.gpsimd]
    if core.generation.at_least(nc_version.gen3):
        allowed.append(enums.engine.scalar)
    used = engine_of(engine, tuple(allowed), dst, src)
    write(dst, convert(read(src, "src"), dst.dtype))
    return record(core, used, name, {"dst": dst, "src": src})


def tensor_copy_predicated(
    dst: NkiTensor,
    src: float | NkiTensor,
    predicate: NkiTensor,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Copy to ``dst`` the elements of ``src`` (or the constant) where ``predicate`` is not 0.

    The rules are those of NKI 0.7.0. Only a constant can be copied where ``predicate`` is 0.
    """
    core = tick()
    tile(dst, "dst")
    tile(predicate, "predicate")
    if len(dst.shape) > 1 + MAX_FREE_DIMS:
        fail(f"dst has {len(dst.shape) - 1} free dimensions, at most {MAX_FREE_DIMS} are copied")
    if predicate.dtype not in ("uint8", "uint16", "uint32"):
        fail(f"predicate must be uint8, uint16 or uint32, got {predicate!r}")
    same_size(dst=dst, predicate=predicate)
    operands: dict[str, View] = {"dst": dst, "predicate": predicate}
    chosen = (read(predicate, "predicate") != 0).reshape(dst.shape) ^ bool(reverse_pred)
    if isinstance(src, NkiTensor):
        tile(src, "src")
        if reverse_pred:
            fail("reverse_pred is for constants, src is a tile")
        same_size(dst=dst, src=src)
        if src.dtype != dst.dtype:
            fail(f"src and dst must have one dtype, got {src.dtype} and {dst.dtype}")
        if MemoryRegion.psum in (src.buffer,) and predicate.buffer is MemoryRegion.psum:
            fail("src and predicate cannot both be in psum")
        values = read(src, "src").reshape(dst.shape)
        operands["src"] = src
    else:
        if isinstance(src, float) != (dst.dtype in FLOATS):
            fail(f"src must be a constant of the kind of dst, got {src!r} for {dst.dtype}")
        values = from_float32(np.full(dst.shape, src, np.float32), dst.dtype)
    direct = resolved(dst, "dst")
    refuse_broadcast(direct, "dst")
    writable(direct, "dst")[chosen] = values[chosen]
    _mark_written(direct, rows=chosen)
    return record(core, "vector", name, operands)


def affine(
    pattern: list[list[int]], offset: int, channel_multiplier: int, partitions: int
) -> NDArray[np.int32]:
    """Return ``offset + partition * channel_multiplier + pattern`` as [partitions, elements]."""
    if not 1 <= len(pattern) <= MAX_PATTERN or any(len(pair) != 2 for pair in pattern):
        fail(f"pattern {pattern} is no list of 1 to {MAX_PATTERN} [step, count] pairs")
    for what, value in (("offset", offset), ("channel_multiplier", channel_multiplier)):
        if not isinstance(value, int) or not -(2**31) <= value < 2**31:
            fail(f"{what} must be an int32 constant, got {value!r}")
    free = np.zeros(1, np.int64)
    for step, count in pattern:
        if count < 1:
            fail(f"pattern {pattern} has a count below 1")
        free = (free[:, None] + step * np.arange(count)).reshape(-1)
    rows = offset + channel_multiplier * np.arange(partitions)
    return (rows[:, None] + free).astype(np.int32)  # 32-bit arithmetic wraps


def iota(
    dst: NkiTensor,
    pattern: list[list[int]],
    offset: int = 0,
    channel_multiplier: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """Write an affine pattern of integers, computed in int32 and converted to ``dst``'s dtype."""
    core = tick()
    tile(dst, "dst", SBUF)
    values = affine(pattern, offset, channel_multiplier, dst.shape[0])
    _check_count(pattern, values, dst)
    write(dst, convert(values, dst.dtype))
    return record(core, "gpsimd", name, {"dst": dst})


def affine_select(
    dst: NkiTensor,
    pattern: list[list[int]],
    channel_multiplier: int,
    on_true_tile: NkiTensor,
    on_false_value: float,
    cmp_op: Op = equal,
    offset: int = 0,
    name: str | None = None,
) -> NkiInstruction:
    """Take ``on_true_tile`` where an affine pattern compares with 0 as ``cmp_op`` says."""
    core = tick()
    tile(dst, "dst", SBUF)
    tile(on_true_tile, "on_true_tile", SBUF)
    same_size(dst=dst, on_true_tile=on_true_tile)
    if checked_op(cmp_op, "cmp_op").name not in COMPARISONS:
        fail(f"cmp_op must be one of {COMPARISONS}, got {cmp_op!r}")
    if not isinstance(on_false_value, float):
        fail(f"on_false_value must be a float, got {on_false_value!r}")
    values = affine(pattern, offset, channel_multiplier, dst.shape[0])
    _check_count(pattern, values, dst)
    binary = TOKENS[cmp_op.name].binary
    assert binary is not None
    chosen = binary(values, np.int32(0)) != 0
    source = read(on_true_tile, "on_true_tile").reshape(chosen.shape)
    if dst.dtype == on_true_tile.dtype:
        filler = from_float32(np.float32(on_false_value).reshape(1), dst.dtype)
        write(dst, np.where(chosen, source, filler))
    else:
        filler32 = np.float32(on_false_value)
        write_float32(dst, np.where(chosen, to_float32(source), filler32))
    return record(core, "gpsimd", name, {"dst": dst, "on_true_tile": on_true_tile})


def _check_count(pattern: list[list[int]], values: Array, dst: View) -> None:
    if values.shape[1] != dst.size // dst.shape[0]:
        fail(f"pattern {pattern} has {values.shape[1]} elements, dst is {dst!r}")
