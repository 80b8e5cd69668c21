"""Elementwise arithmetic and reductions of the Vector Engine and GpSimd."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import enums
from .access import (
    NkiInstruction,
    column,
    is_integer,
    read,
    read_float32,
    record,
    same_size,
    tile,
    vector,
    write,
    write_float32,
)
from .dtypes import WORDS, Array, numpy_dtype
from .enums import MemoryRegion, engine, nc_version
from .errors import fail
from .isa_copy import engine_of
from .machine import tick
from .ops import Op, checked_op
from .tensor import NkiTensor
from .view import View

REDUCTIONS: dict[str, Any] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
}
SCALAR_ENGINE_OPS = (("multiply", "add"), ("multiply", ""), ("add", ""))


def tensor_tensor(
    dst: NkiTensor,
    data1: NkiTensor,
    data2: NkiTensor,
    op: Op,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``data1 <op> data2``: in fp32; exactly on 32-bit integers in SBUF."""
    core = tick()
    views: dict[str, View] = {"dst": dst, "data1": data1, "data2": data2}
    for role, view in views.items():
        tile(view, role)
    same_size(**views)
    if data1.buffer is MemoryRegion.psum and data2.buffer is MemoryRegion.psum:
        fail("data1 and data2 cannot both be in psum")
    binary = checked_op(op).binary
    if binary is None:
        fail(f"{op!r} is no binary operator")
    in_psum = any(view.buffer is MemoryRegion.psum for view in views.values())
    words = all(view.dtype in WORDS for view in views.values())
    exact = words and not in_psum and engine is not enums.engine.vector and not op.bitvec
    by_gpsimd = exact or op.name == "power"
    order = (enums.engine.vector, enums.engine.gpsimd)
    used = engine_of(engine, order[::-1] if by_gpsimd else order, *views.values())
    if op.bitvec:
        check_bitvec(op, views)
        left, right = unsigned(data1, "data1"), unsigned(data2, "data2")
        write(dst, binary(left, right).view(numpy_dtype(dst.dtype)))
        return record(core, used, name, views)
    with np.errstate(all="ignore"):
        if exact:
            wide = [read(v, r).astype(np.int64) for r, v in (("data1", data1), ("data2", data2))]
            result = binary(wide[0].reshape(dst.shape), wide[1].reshape(dst.shape))
            write(dst, result.astype(numpy_dtype(dst.dtype)))
        else:
            write_float32(dst, binary(read_float32(data1, "data1"), read_float32(data2, "data2")))
    return record(core, used, name, views)


def tensor_scalar(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: float | NkiTensor | None,
    reverse0: bool = False,
    op1: Op | None = None,
    operand1: float | NkiTensor | None = None,
    reverse1: bool = False,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``(data <op0> operand0) <op1> operand1`` in fp32, or on bit patterns if bitvec.

    Operands are constants or tiles of shape ``(partitions, 1)``, float32 unless bitvec.
    """
    core = tick()
    views: dict[str, View] = {"dst": dst, "data": data}
    tile(dst, "dst")
    tile(data, "data")
    same_size(dst=dst, data=data)
    steps = [(checked_op(op0, "op0"), operand0, reverse0, "operand0")]
    if op1 is not None:
        steps.append((checked_op(op1, "op1"), operand1, reverse1, "operand1"))
    elif operand1 is not None:
        fail(f"operand1 {operand1!r} without op1")
    bitvec = op0.bitvec
    if any(op.bitvec != bitvec for op, *_ in steps if op.name != "bypass"):
        fail(f"op0 {op0!r} and op1 {op1!r} must both be bitvec or both arithmetic")
    used = _scalar_engine(
        core.generation.at_least(nc_version.gen3), engine, bitvec, op0, op1, views
    )
    if bitvec:
        check_bitvec(op0, views)
        value = unsigned(data, "data")
    else:
        value = read_float32(data, "data")
    with np.errstate(all="ignore"):
        for op, operand, reverse, role in steps:
            value = apply(op, value, operand, reverse, role)
            if isinstance(operand, NkiTensor):
                views[role] = operand
    if bitvec:
        write(dst, value.view(numpy_dtype(dst.dtype)))
    else:
        write_float32(dst, value)
    return record(core, used, name, views)


def _scalar_engine(
    has_scalar: bool,
    chosen: engine,
    bitvec: bool,
    op0: Op,
    op1: Op | None,
    views: dict[str, View],
) -> str:
    allowed = [enums.engine.vector]
    names = (op0.name, op1.name if op1 is not None else "")
    if not bitvec:
        allowed.append(enums.engine.gpsimd)
    if has_scalar and names in SCALAR_ENGINE_OPS:
        allowed.append(enums.engine.scalar)
    if "rsqrt" in names:
        allowed = [enums.engine.gpsimd]
    return engine_of(chosen, tuple(allowed), *views.values())


def apply(op: Op, value: Array, operand: object, reverse: bool, role: str) -> Array:
    """Apply one operator of a tensor-scalar instruction to [partitions, elements]."""
    if op.unary is not None:
        if isinstance(operand, View) or operand not in (None, 0, 0.0):
            fail(f"{role} of the unary {op!r} must be None or 0, got {operand!r}")
        return np.asarray(op.unary(value))
    if op.binary is None:
        fail(f"{op!r} is no operator of this instruction")
    if op.bitvec:
        other = _bits_operand(operand, value, role)
    elif isinstance(operand, int | float | View):
        other = np.asarray(column(operand, role, value.shape[0]))
    else:
        fail(f"{role} must be a number or a tile, got {operand!r}")
    left, right = (other, value) if reverse else (value, other)
    return np.asarray(op.binary(left, right)).astype(value.dtype, copy=False)


def _bits_operand(operand: object, value: Array, role: str) -> Array:
    if isinstance(operand, View):
        found = vector(operand, role, value.shape[0])
        if not is_integer(found) or found.itemsize != value.dtype.itemsize:
            fail(f"{role} must be an integer tile as wide as data, got {found!r}")
        return unsigned(found, role)
    if not isinstance(operand, int):
        fail(f"{role} of a bitvec operator must be an integer, got {operand!r}")
    width = 8 * value.dtype.itemsize
    if not -(2 ** (width - 1)) <= operand < 2**width:
        fail(f"{role} {operand} does not fit into {width} bits")
    return np.asarray(operand % 2**width, value.dtype)


def check_bitvec(op: Op, views: dict[str, View]) -> None:
    """Check that an operator on bit patterns gets integers of one width."""
    widths = {view.itemsize for view in views.values()}
    if len(widths) > 1 or not all(is_integer(view) for view in views.values()):
        dtypes = {role: view.dtype for role, view in views.items()}
        fail(f"{op!r} needs integers of one width, got {dtypes}")


def unsigned(view: View, role: str) -> Array:
    """Return an integer tile's bit patterns as [partitions, elements]."""
    values = np.ascontiguousarray(read(view, role)).reshape(view.shape[0], -1)
    return values.view(f"u{view.itemsize}")


def tensor_reduce(
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    axis: int | tuple[int, ...] | list[int],
    negate: bool = False,
    keepdims: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Reduce the last free dimensions of a tile, in fp32 or on bit patterns."""
    core = tick()
    tile(dst, "dst")
    tile(data, "data")
    if not checked_op(op).reduces:
        fail(f"{op!r} is no reduction operator")
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    if not axes or axes != tuple(range(data.ndim - len(axes), data.ndim)) or axes[0] < 1:
        fail(f"axis {axis} must be the last free dimensions of {data!r}, in order")
    if op.bitvec and negate:
        fail(f"negate is for arithmetic operators, got {op!r}")
    kept = data.shape[: axes[0]]
    if (dst.shape[0], dst.size) != (data.shape[0], int(np.prod(kept))):
        fail(f"reducing {data.shape} over {axes} leaves {kept}, dst is {dst!r}")
    if keepdims and dst.shape != (*kept, *(1 for _ in axes)):
        fail(f"with keepdims dst must be {(*kept, *(1 for _ in axes))}, got {dst!r}")
    ufunc = REDUCTIONS[op.name]
    if op.bitvec:
        check_bitvec(op, {"dst": dst, "data": data})
        values = unsigned(data, "data").reshape(*kept, -1)
        write(dst, ufunc.reduce(values, axis=-1).view(numpy_dtype(dst.dtype)))
    else:
        with np.errstate(all="ignore"):
            found = ufunc.reduce(read_float32(data, "data").reshape(*kept, -1), axis=-1)
            write_float32(dst, np.asarray(found, np.float32) * np.float32(-1 if negate else 1))
    return record(core, "vector", name, {"dst": dst, "data": data})


def reciprocal(dst: NkiTensor, data: NkiTensor, name: str | None = None) -> NkiInstruction:
    """Compute ``1 / data`` in fp32 on the Vector Engine."""
    core = tick()
    tile(dst, "dst")
    tile(data, "data")
    same_size(dst=dst, data=data)
    with np.errstate(all="ignore"):
        write_float32(dst, np.float32(1) / read_float32(data, "data"))
    return record(core, "vector", name, {"dst": dst, "data": data})
