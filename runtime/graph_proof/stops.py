"""Why a graph could not be captured as one static graph, told apart by what it breaks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, fx
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorDeviceMismatchError,
)
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

from .source_lines import line_of_text

GRAPH_BREAK = "one-graph"
HOST_SYNC = "no-host-sync"
DATA_DEPENDENT_SHAPE = "no-data-dependent-shape"
SYMBOLIC_SHAPE = "no-symbolic-shape"
ONE_DEVICE = "one-device"

KINDS: Mapping[type, str] = MappingProxyType(
    {
        DataDependentOutputException: HOST_SYNC,
        DynamicOutputShapeException: DATA_DEPENDENT_SHAPE,
        FakeTensorDeviceMismatchError: ONE_DEVICE,
    }
)
TEXTS: Mapping[str, str] = MappingProxyType(
    {
        "Data-dependent branching": HOST_SYNC,
        "Data-dependent assertion": HOST_SYNC,
        "Tensor.tolist()": HOST_SYNC,
        "Tensor.item()": HOST_SYNC,
        "Tensor device mismatch": ONE_DEVICE,
    }
)
"""By the beginning of what torch says: it tells these from other breaks by text alone."""
SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


@dataclass(frozen=True, slots=True)
class Stop:
    """A reason: the rule that is broken, what was met, and the line of our code."""

    rule: str
    text: str
    line: str


def stop_of(error: BaseException, line: str) -> Stop:
    """Return which rule an error of capturing is about."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    for kind, rule in KINDS.items():
        if isinstance(error, kind):
            return Stop(rule, text, line)
    for beginning, rule in TEXTS.items():
        if text.startswith(beginning):
            return Stop(rule, text, line)
    return Stop(GRAPH_BREAK, text, line)


def stops_of_values(nodes: Iterable[fx.Node]) -> list[Stop]:
    """Return what is not static among what Dynamo found.

    A value that is read from a tensor explains every size that follows from it, so that sizes are
    named only where no value is read.
    """
    reads, sizes = [], []
    for node in nodes:
        line = line_of_text(node.meta.get("stack_trace"))
        for value in pytree.tree_leaves(node.meta.get("example_value")):
            if isinstance(value, SYMBOLS) and _reads_a_tensor(node):
                reads.append(Stop(HOST_SYNC, f"{node.name} reads a value of a tensor", line))
            elif isinstance(value, Tensor) and _has_symbols(value):
                kind = DATA_DEPENDENT_SHAPE if free_unbacked_symbols(value) else SYMBOLIC_SHAPE
                sizes.append(Stop(kind, f"{node.name} has shape {tuple(value.shape)}", line))
    return reads or sizes[:1]


def _reads_a_tensor(node: fx.Node) -> bool:
    """Tell a value of a tensor from one of its sizes."""
    return node.target in ("item", "tolist", torch.ops.aten._local_scalar_dense.default)


def _has_symbols(tensor: Tensor) -> bool:
    return any(isinstance(size, torch.SymInt) for size in tensor.shape)
