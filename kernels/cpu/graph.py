"""Captures a module as one static graph by torch.export, bound to its real tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class StaticGraph:
    """A graph whose shapes are all numbers, and the tensor behind each placeholder."""

    graph: fx.Graph
    placeholders: Mapping[str, Tensor]


def capture(module: nn.Module, inputs: Sequence[object]) -> StaticGraph:
    """Trace the module with these (nested) inputs.

    In-place changes stay as they are: no operator is decomposed or made functional.

    Raises:
        ValueError: a shape is not static.
    """
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), strict=False)
    _check_static(program.graph)
    leaves = iter(pytree.tree_leaves((tuple(inputs), {})))
    placeholders = {}
    for spec in program.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            value = next(leaves)
        else:
            value = _attribute(module, program, str(spec.target))
        if isinstance(value, Tensor):
            placeholders[spec.arg.name] = value
    return StaticGraph(program.graph, placeholders)


def _attribute(module: nn.Module, program: torch.export.ExportedProgram, name: str) -> Tensor:
    """Return the module's own tensor, so that graphs share it; else a constant of the trace."""
    owner, _, attribute = name.rpartition(".")
    try:
        value: Tensor = getattr(module.get_submodule(owner), attribute)
    except AttributeError:
        value = program.constants[name]
    return value


def _check_static(graph: fx.Graph) -> None:
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, Tensor) else [value]
            if any(isinstance(size, torch.SymInt) for size in sizes):
                raise ValueError(f"{node.name} has a shape that is not static: {value}")
