"""The Scalar Engine: activation functions with scale, bias and a running sum."""

from __future__ import annotations

import numpy as np

from . import enums
from .access import (
    NkiInstruction,
    column,
    read_float32,
    record,
    same_size,
    tile,
    vector,
    write_float32,
)
from .dtypes import Array
from .enums import nc_version, reduce_cmd
from .errors import fail
from .machine import Accumulators, tick
from .ops import Op, add, checked_op
from .tensor import NkiTensor
from .view import View


def activation(
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    reduce_op: Op | None = None,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    engine: enums.engine = enums.engine.scalar,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``op(data * scale + bias)`` in fp32; optionally add its row sums to registers.

    ``reduce_res`` receives the registers after the instruction.
    """
    commands = enums.reduce_cmd
    if engine is not enums.engine.scalar:
        fail(f"activation is simulated on the scalar engine only, got {engine}")
    if reduce_cmd is commands.load_reduce:
        fail("load_reduce is no command of activation")
    adds = reduce_cmd in (commands.reduce, commands.reset_reduce)
    if adds and reduce_op is not add:
        fail(f"reduce_op must be nl.add, got {reduce_op!r}")
    return _activate(dst, op, data, bias, scale, reduce_res, reduce_cmd, name)


def activation_reduce(
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    reduce_op: Op,
    reduce_res: NkiTensor | None,
    bias: float | NkiTensor | None = None,
    scale: float | NkiTensor = 1.0,
    name: str | None = None,
) -> NkiInstruction:
    """Compute ``activation`` with ``reset_reduce``: the row sums of this instruction alone."""
    if reduce_op is not add:
        fail(f"reduce_op must be nl.add, got {reduce_op!r}")
    command = reduce_cmd.reset_reduce
    return _activate(dst, op, data, bias, scale, reduce_res, command, name)


def _activate(
    dst: NkiTensor,
    op: Op,
    data: NkiTensor,
    bias: float | NkiTensor | None,
    scale: float | NkiTensor,
    reduce_res: NkiTensor | None,
    command: reduce_cmd,
    name: str | None,
) -> NkiInstruction:
    core = tick()
    tile(dst, "dst")
    tile(data, "data")
    same_size(dst=dst, data=data)
    function = checked_op(op).activation
    if function is None:
        fail(f"{op!r} is no activation function")
    if (
        bias is not None
        and not isinstance(bias, View)
        and not core.generation.at_least(nc_version.gen3)
    ):
        fail(f"a constant bias needs trn2, the target is {core.generation.name}")
    rows = data.shape[0]
    views: dict[str, View] = {"dst": dst, "data": data}
    with np.errstate(all="ignore"):
        value = read_float32(data, "data") * column(scale, "scale", rows)
        if isinstance(bias, NkiTensor):
            value = value + read_float32(vector(bias, "bias", rows), "bias")
            views["bias"] = bias
        elif bias is not None:
            value = value + column(bias, "bias", rows)
        _check_range(op, value)
        result = np.asarray(function(value), np.float32)
        write_float32(dst, result)
        accumulate(core.scalar, command, add, result)
    if isinstance(scale, NkiTensor):
        views["scale"] = scale
    if reduce_res is not None:
        store_accumulators(core.scalar, reduce_res, rows)
        views["reduce_res"] = reduce_res
    return record(core, "scalar", name, views)


def _check_range(op: Op, value: Array) -> None:
    """Check the magnitudes between which the engine's polynomial is valid (NaN passes)."""
    size = np.abs(value)
    outside = (size < op.lowest) | (size > op.highest)
    if op.name in ("log", "sqrt", "rsqrt"):
        outside |= value < 0
    if outside.any():
        fail(
            f"{op!r} is valid for {op.lowest:g} to {op.highest:g}; "
            f"{int(outside.sum())} elements are not, {value[outside][0]:g} is one"
        )


def accumulate(registers: Accumulators, command: reduce_cmd, op: Op, values: Array) -> None:
    """Reduce [partitions, elements] into an engine's accumulator registers.

    Raises:
        SimulationError: onto registers that no instruction has reset.
    """
    lanes = slice(0, values.shape[0])
    assert op.identity is not None
    if command in (reduce_cmd.reset, reduce_cmd.reset_reduce):
        registers.values[lanes] = op.identity
        registers.valid[lanes] = True
    if command in (reduce_cmd.reduce, reduce_cmd.reset_reduce):
        check_valid(registers, values.shape[0])
        combine = {"add": np.add, "multiply": np.multiply, "maximum": np.maximum}
        combine["minimum"] = np.minimum
        ufunc = combine[op.name]
        registers.values[lanes] = ufunc(registers.values[lanes], ufunc.reduce(values, axis=1))


def check_valid(registers: Accumulators, partitions: int) -> None:
    """Check that the registers of the lanes in use hold a defined value."""
    if not registers.valid[:partitions].all():
        fail(
            f"accumulator registers of {partitions} lanes are used, but "
            f"{int((~registers.valid[:partitions]).sum())} of them were not reset before"
        )


def store_accumulators(registers: Accumulators, reduce_res: NkiTensor, partitions: int) -> None:
    """Write the registers to a ``(partitions, 1)`` tile."""
    vector(reduce_res, "reduce_res", partitions)
    check_valid(registers, partitions)
    write_float32(reduce_res, registers.values[:partitions].reshape(-1, 1), "reduce_res")
