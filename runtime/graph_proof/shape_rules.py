"""Rules about graphs as a whole, their shapes and their inputs."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import fx

from .capture import DEVICE, Capture
from .dataflow import owner, tensors_of
from .rules import Found, Rule, each_call, each_value, stopped
from .stops import DATA_DEPENDENT_SHAPE, GRAPH_BREAK, HOST_SYNC, ONE_DEVICE, SYMBOLIC_SHAPE

COMPILE_PAGE = "torch.compile reference of TorchNeuron, SDK 2.33"
READS = (
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.item.default,
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.equal.default,
)
LOOKUPS = {
    torch.ops.aten.index_select.default: (0, 2),
    torch.ops.aten.embedding.default: (0, 1),
    torch.ops.aten.gather.default: (0, 2),
    torch.ops.aten.scatter.src: (0, 2),
    torch.ops.aten.scatter.value: (0, 2),
}
"""Where each has its table and its indices among the arguments."""


def _symbolic(value: object) -> str | None:
    sizes: list[object] = [size for one in tensors_of(value) for size in one.shape]
    sizes += [value] if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool) else []
    symbols = [str(size) for size in sizes if not isinstance(size, int)]
    return f"its size {symbols[0]} is no number" if symbols else None


def _empty(value: object) -> str | None:
    shapes = [tuple(one.shape) for one in tensors_of(value)]
    empty = [shape for shape in shapes if any(size == 0 for size in shape if type(size) is int)]
    return f"shape {empty[0]} holds nothing" if empty else None


def _elsewhere(value: object) -> str | None:
    devices = {str(one.device) for one in tensors_of(value) if one.device != DEVICE}
    return f"on {min(devices)}, not on the device" if devices else None


def _reads_value(node: fx.Node) -> str | None:
    return "the host waits for a value" if node.target in READS else None


def _memory_format(node: fx.Node) -> str | None:
    kept = (None, torch.contiguous_format, torch.preserve_format)
    wanted = node.kwargs.get("memory_format")
    return None if wanted in kept else f"lays memory out as {wanted}"


def _counts_past(node: fx.Node) -> str | None:
    """Find indices that are counted up further than their table is long."""
    if node.target not in LOOKUPS:
        return None
    table, indices = (node.args[place] for place in LOOKUPS[node.target])
    if not isinstance(table, fx.Node) or not isinstance(indices, fx.Node):
        return None
    counter = owner(indices)
    if "aten.arange" not in str(counter.target):
        return None
    dim = 0 if node.target == torch.ops.aten.embedding.default else node.args[1]
    assert isinstance(dim, int)
    length, size = counter.meta["val"].shape[0], table.meta["val"].shape[dim]
    return f"counts to {length} in a table of {size}" if length > size else None


def _twice(capture: Capture) -> Iterator[Found]:
    places: dict[int, list[int]] = {}
    for place, tensor in enumerate(capture.inputs):
        places.setdefault(id(tensor), []).append(place)
    for found in places.values():
        if len(found) > 1:
            yield Found("", f"inputs {found} are one tensor", "")


def _not_dense(capture: Capture) -> Iterator[Found]:
    for place, tensor in enumerate(capture.inputs):
        if not tensor.is_contiguous():
            yield Found("", f"input {place} has strides {tensor.stride()}", "")


def _host_syncs(capture: Capture) -> Iterator[Found]:
    yield from stopped(HOST_SYNC)(capture)
    yield from each_call(_reads_value)(capture)


def _symbolic_shapes(capture: Capture) -> Iterator[Found]:
    yield from stopped(SYMBOLIC_SHAPE)(capture)
    yield from each_value(_symbolic)(capture)


def _other_devices(capture: Capture) -> Iterator[Found]:
    yield from stopped(ONE_DEVICE)(capture)
    yield from each_value(_elsewhere)(capture)


SHAPE_RULES = (
    Rule(
        GRAPH_BREAK,
        "The code is one graph: torch.compile(fullgraph=True) reads it to its end",
        f"{COMPILE_PAGE}: fullgraph raises where a graph breaks, and is recommended",
        stopped(GRAPH_BREAK),
    ),
    Rule(
        SYMBOLIC_SHAPE,
        "Every size is a number",
        "compiler error NCC_EMOD025, SDK 2.32; dynamic=True is rejected, " + COMPILE_PAGE,
        _symbolic_shapes,
    ),
    Rule(
        DATA_DEPENDENT_SHAPE,
        "No size depends on what a tensor holds",
        "assumed, from TorchNeuron's source of April 2026: such operators had no static graph",
        stopped(DATA_DEPENDENT_SHAPE),
    ),
    Rule(
        HOST_SYNC,
        "Nothing waits for a tensor's value: no item(), bool(tensor), tolist()",
        f"{COMPILE_PAGE}: they break the graph",
        _host_syncs,
    ),
    Rule(
        ONE_DEVICE,
        "Every tensor is on the device, also those that are made on the way",
        "PyTorch: operators take tensors of one device",
        _other_devices,
    ),
    Rule(
        "no-empty-tensor",
        "No tensor has a size of 0",
        "assumed, from TorchNeuron's source of April 2026: its tests expect a compile to fail",
        each_value(_empty),
    ),
    Rule(
        "memory-format",
        "Memory is laid out contiguously or as it was",
        "assumed, from TorchNeuron's source of April 2026",
        each_call(_memory_format),
    ),
    Rule(
        "lookup-in-range",
        "No counter that serves as indices goes past the table",
        "compiler errors NCC_EVRF056 (gather) and NCC_EVRF031 (scatter), SDK 2.32",
        each_call(_counts_past),
    ),
    Rule(
        "inputs-distinct",
        "No tensor is given twice",
        "PyTorch: it would guard against duplicates, which is a reason to compile again",
        _twice,
    ),
    Rule(
        "inputs-dense",
        "Inputs are contiguous",
        "PyTorch: strides are guarded, which is a reason to compile again",
        _not_dense,
    ),
)
