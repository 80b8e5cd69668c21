"""Two operators at once, and reductions and scans of their results, on the Vector Engine."""

from __future__ import annotations

import numpy as np

from . import enums
from .access import (
    NkiInstruction,
    column,
    read,
    read_float32,
    record,
    same_size,
    tile,
    vector,
    write,
    write_float32,
)
from .dtypes import Array
from .enums import MemoryRegion, reduce_cmd
from .errors import fail
from .isa_activation import accumulate, check_valid
from .isa_elementwise import apply
from .machine import tick
from .ops import Op, add, checked_op
from .tensor import NkiTensor
from .view import View

QUADRANT = 32
UNMODIFIED = 255  # in a shuffle mask
ACCUMULATED = ("add", "multiply", "maximum", "minimum")


def scalar_tensor_tensor(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: float | NkiTensor,
    op1: Op,
    operand1: NkiTensor,
    reverse0: bool = False,
    reverse1: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_op: Op = add,
    reduce_res: NkiTensor | None = None,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``(data <op0> operand0) <op1> operand1`` in fp32; only operand1 is a whole tile."""
    core = tick()
    if reduce_res is not None:
        fail("the reduction of scalar_tensor_tensor is not simulated")
    views: dict[str, View] = {"dst": dst, "data": data, "operand1": operand1}
    for role, view in views.items():
        tile(view, role)
    same_size(**views)
    _refuse_both_in_psum(data=data, operand1=operand1)
    for role, op in (("op0", op0), ("op1", op1)):
        _arithmetic(op, role)
    with np.errstate(all="ignore"):
        first = apply(op0, read_float32(data, "data"), operand0, reverse0, "operand0")
        write_float32(dst, _binary(op1, first, read_float32(operand1, "operand1"), reverse1))
    if isinstance(operand0, NkiTensor):
        views["operand0"] = operand0
    return record(core, "vector", name, views)


def tensor_scalar_reduce(
    dst: NkiTensor,
    data: NkiTensor,
    op0: Op,
    operand0: float | NkiTensor,
    reduce_op: Op,
    reduce_res: NkiTensor | None = None,
    reverse0: bool = False,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_init: float | NkiTensor | None = None,
    reduce_res_negate: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``data <op0> operand0`` in fp32 and reduce its rows into the accumulators."""
    core = tick()
    commands = enums.reduce_cmd
    views: dict[str, View] = {"dst": dst, "data": data}
    tile(dst, "dst")
    tile(data, "data")
    same_size(dst=dst, data=data)
    _arithmetic(op0, "op0")
    if checked_op(reduce_op, "reduce_op").name not in ACCUMULATED:
        fail(f"reduce_op must be one of {ACCUMULATED}, got {reduce_op!r}")
    if reverse0:
        fail("reverse0 is not supported yet by the instruction")
    if reduce_cmd not in (commands.reduce, commands.reset_reduce, commands.load_reduce):
        fail(f"reduce_cmd must be reduce, reset_reduce or load_reduce, got {reduce_cmd}")
    if (reduce_cmd is commands.load_reduce) != (reduce_init is not None):
        fail(f"reduce_init goes with load_reduce, got {reduce_init!r} with {reduce_cmd}")
    rows = data.shape[0]
    with np.errstate(all="ignore"):
        result = apply(op0, read_float32(data, "data"), operand0, False, "operand0")
        write_float32(dst, result)
        if reduce_init is not None:
            core.vector.values[:rows] = np.ravel(column(reduce_init, "reduce_init", rows))
            core.vector.valid[:rows] = True
            reduce_cmd = commands.reduce
        accumulate(core.vector, reduce_cmd, reduce_op, result)
    if reduce_res is not None:
        check_valid(core.vector, rows)
        vector(reduce_res, "reduce_res", rows)
        sign = np.float32(-1 if reduce_res_negate else 1)
        write_float32(reduce_res, core.vector.values[:rows] * sign, "reduce_res")
        views["reduce_res"] = reduce_res
    return record(core, "vector", name, views)


def tensor_tensor_scan(
    dst: NkiTensor,
    data0: NkiTensor,
    data1: NkiTensor,
    initial: float | NkiTensor,
    op0: Op,
    op1: Op,
    reverse0: bool = False,
    reverse1: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``result[i] = (data0[i] <op0> result[i - 1]) <op1> data1[i]`` along each row."""
    core = tick()
    views: dict[str, View] = {"dst": dst, "data0": data0, "data1": data1}
    for role, view in views.items():
        tile(view, role)
    same_size(**views)
    _refuse_both_in_psum(data0=data0, data1=data1)
    for role, op in (("op0", op0), ("op1", op1)):
        _arithmetic(op, role)
    rows = data0.shape[0]
    if isinstance(initial, NkiTensor):
        views["initial"] = vector(initial, "initial", rows)
        state: Array = read_float32(initial, "initial")[:, 0]
    else:
        state = np.broadcast_to(column(initial, "initial", rows), (rows,))
    left, right = read_float32(data0, "data0"), read_float32(data1, "data1")
    result = np.empty(left.shape, np.float32)
    with np.errstate(all="ignore"):
        for i in range(left.shape[1]):
            state = _binary(op1, _binary(op0, left[:, i], state, reverse0), right[:, i], reverse1)
            result[:, i] = state
        write_float32(dst, result)
    return record(core, "vector", name, views)


def nc_stream_shuffle(
    dst: NkiTensor, src: NkiTensor, shuffle_mask: list[int], name: str | None = None
) -> NkiInstruction:
    """Copy partitions within each quadrant of 32: ``dst[i] = src[shuffle_mask[i]]``, bit by bit.

    A mask entry of 255 leaves its partition of ``dst`` as it is.
    """
    core = tick()
    tile(dst, "dst")
    tile(src, "src")
    if dst.dtype != src.dtype:
        fail(f"dst and src must have one dtype, got {dst.dtype} and {src.dtype}")
    if dst.size // dst.shape[0] != src.size // src.shape[0]:
        fail(f"elements per partition must agree, got {dst!r} and {src!r}")
    if len(shuffle_mask) != QUADRANT or any(
        not 0 <= entry < QUADRANT and entry != UNMODIFIED for entry in shuffle_mask
    ):
        fail(f"shuffle_mask must be 32 partitions (0..31, or 255), got {shuffle_mask}")
    values = read(src, "src")
    kept = dst.shape[1:]
    for row in range(dst.shape[0]):
        entry = shuffle_mask[row % QUADRANT]
        if entry == UNMODIFIED:
            continue
        source = row - row % QUADRANT + entry
        if source >= src.shape[0]:
            fail(f"partition {row} of dst takes partition {source} of src, which is {src!r}")
        write(dst[row], values[source].reshape(1, *kept))
    return record(core, "vector", name, {"dst": dst, "src": src})


def _binary(op: Op, left: Array, right: Array, reverse: bool) -> Array:
    assert op.binary is not None
    values = op.binary(right, left) if reverse else op.binary(left, right)
    return np.asarray(values).astype(np.float32, copy=False)


def _arithmetic(op: object, role: str) -> None:
    found = checked_op(op, role)
    if found.bitvec or (found.binary is None and role == "op1"):
        fail(f"{role} must be a binary arithmetic operator, got {op!r}")


def _refuse_both_in_psum(**views: View) -> None:
    if all(view.buffer is MemoryRegion.psum for view in views.values()):
        fail(f"{' and '.join(views)} cannot both be in psum")
