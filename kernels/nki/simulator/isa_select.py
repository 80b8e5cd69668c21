"""Selections of the Vector Engine with a running maximum: select_reduce and range_select."""

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
from .dtypes import FLOATS, Array, from_float32
from .enums import MemoryRegion, nc_version, reduce_cmd
from .errors import fail
from .isa_activation import accumulate, store_accumulators
from .machine import Machine, tick
from .ops import Op, checked_op, maximum
from .tensor import NkiTensor
from .view import View

FP32_MIN = -3.4028235e38
PREDICATES = ("int8", "uint8", "int16", "uint16")
BOUND_OPS = ("equal", "less", "less_equal", "greater", "greater_equal")
MAX_INDEX = 2**24  # beyond it fp32 does not hold every integer


def select_reduce(
    dst: NkiTensor,
    predicate: NkiTensor,
    on_true: NkiTensor,
    on_false: float | NkiTensor,
    reduce_res: NkiTensor | None = None,
    reduce_cmd: reduce_cmd = reduce_cmd.idle,
    reduce_op: Op = maximum,
    reverse_pred: bool = False,
    name: str | None = None,
) -> NkiInstruction:
    """Take ``on_true`` where ``predicate`` is not 0, else ``on_false``; reduce by maximum."""
    core = tick()
    for role, view in (("dst", dst), ("predicate", predicate), ("on_true", on_true)):
        tile(view, role)
    same_size(dst=dst, predicate=predicate, on_true=on_true)
    if predicate.dtype not in PREDICATES:
        fail(f"predicate must be one of {PREDICATES}, got {predicate!r}")
    if on_true.dtype in ("int32", "uint32"):
        fail(f"on_true cannot be {on_true.dtype}")
    if predicate.buffer is MemoryRegion.psum and on_true.buffer is MemoryRegion.psum:
        fail("on_true and predicate cannot both be in psum")
    rows = on_true.shape[0]
    chosen = (read(predicate, "predicate").reshape(rows, -1) != 0) ^ bool(reverse_pred)
    views: dict[str, View] = {"dst": dst, "predicate": predicate, "on_true": on_true}
    if isinstance(on_false, NkiTensor):
        otherwise: Array = read_float32(vector(on_false, "on_false", rows), "on_false")
        views["on_false"] = on_false
    else:
        otherwise = np.asarray(column(on_false, "on_false", rows))
    return _select(core, views, chosen, otherwise, (reduce_cmd, reduce_op, reduce_res), name)


def range_select(
    dst: NkiTensor,
    on_true_tile: NkiTensor,
    comp_op0: Op,
    comp_op1: Op,
    bound0: NkiTensor,
    bound1: NkiTensor,
    reduce_cmd: reduce_cmd = reduce_cmd.reset_reduce,
    reduce_res: NkiTensor | None = None,
    reduce_op: Op = maximum,
    range_start: int = 0,
    on_false_value: float = FP32_MIN,
    name: str | None = None,
) -> NkiInstruction:
    """Take elements whose free index plus ``range_start`` meets both bounds, else FP32_MIN."""
    core = tick()
    if not core.generation.at_least(nc_version.gen3):
        fail(f"range_select needs trn2, the target is {core.generation.name}")
    tile(dst, "dst")
    tile(on_true_tile, "on_true_tile")
    same_size(dst=dst, on_true_tile=on_true_tile)
    if on_true_tile.dtype not in FLOATS:
        fail(f"on_true_tile must be a float, got {on_true_tile!r}")
    if np.float32(on_false_value) != np.float32(FP32_MIN):
        fail(f"on_false_value must be FP32_MIN ({FP32_MIN}), got {on_false_value!r}")
    rows, elements = dst.shape[0], dst.size // dst.shape[0]
    if not isinstance(range_start, int) or abs(range_start) + elements > MAX_INDEX:
        fail(f"range_start {range_start!r} plus {elements} elements exceeds 2**24")
    indices = (range_start + np.arange(elements)).astype(np.float32)
    chosen = np.ones((rows, elements), np.bool_)
    views: dict[str, View] = {"dst": dst, "on_true_tile": on_true_tile}
    for role, op, bound in (("bound0", comp_op0, bound0), ("bound1", comp_op1, bound1)):
        if checked_op(op, f"comp_op{role[-1]}").name not in BOUND_OPS:
            fail(f"comp_op{role[-1]} must be one of {BOUND_OPS}, got {op!r}")
        compare = op.binary
        assert compare is not None
        limit = column(vector(bound, role, rows), role, rows)
        chosen &= compare(np.broadcast_to(indices, chosen.shape), limit) != 0
        views[role] = bound
    otherwise = np.asarray(np.float32(FP32_MIN))
    return _select(core, views, chosen, otherwise, (reduce_cmd, reduce_op, reduce_res), name)


def _select(
    core: Machine,
    views: dict[str, View],
    chosen: Array,
    otherwise: Array,
    reduction: tuple[reduce_cmd, Op, NkiTensor | None],
    name: str | None,
) -> NkiInstruction:
    """Select, store, and reduce: what both instructions do once the predicate is known."""
    command, op, reduce_res = reduction
    commands = enums.reduce_cmd
    if op is not maximum:
        fail(f"reduce_op must be nl.maximum, got {op!r}")
    if command not in (commands.idle, commands.reduce, commands.reset_reduce):
        fail(f"reduce_cmd must be idle, reduce or reset_reduce, got {command}")
    if command is commands.idle and reduce_res is not None:
        fail("reduce_res with reduce_cmd.idle, which reduces nothing")
    role = "on_true" if "on_true" in views else "on_true_tile"
    dst, source = views["dst"], views[role]
    values = read(source, role).reshape(chosen.shape)
    selected = np.where(chosen, values.astype(np.float32), otherwise)
    if dst.dtype == source.dtype:
        # Elements taken keep their bits.
        write(dst, np.where(chosen, values, from_float32(otherwise, dst.dtype)))
    else:
        write_float32(dst, selected)
    if command is commands.idle:
        core.vector.valid[:] = False  # idle may still modify the registers
        return record(core, "vector", name, views)
    with np.errstate(all="ignore"):
        accumulate(core.vector, command, op, selected)
    if reduce_res is not None:
        if reduce_res.dtype not in FLOATS:
            fail(f"reduce_res must be a float, got {reduce_res!r}")
        store_accumulators(core.vector, reduce_res, chosen.shape[0])
        views = {**views, "reduce_res": reduce_res}
    return record(core, "vector", name, views)
