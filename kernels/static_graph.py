"""Captures a module as one static graph by torch.export, and binds it to its real tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils import _pytree as pytree


@dataclass(frozen=True, slots=True)
class Trace:
    """A graph whose shapes are all numbers, and what its placeholders stand for; no weights.

    Attributes:
        nodes: in order; each is a placeholder, a call of an operator, a getitem or the output.
        inputs: by placeholder, the place of a tensor among the leaves of the inputs.
        attributes: by placeholder, the path of a tensor in the module.
        constants: by placeholder, a tensor that tracing made.
    """

    nodes: Sequence[fx.Node]
    inputs: Mapping[str, int]
    attributes: Mapping[str, str]
    constants: Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class StaticGraph:
    """A graph whose shapes are all numbers, and the tensor behind each placeholder."""

    nodes: Sequence[fx.Node]
    placeholders: Mapping[str, Tensor]


def trace(module: nn.Module, inputs: Sequence[object]) -> Trace:
    """Trace the module with these (nested) inputs, of which only shapes and dtypes count.

    In-place changes stay as they are: no operator is decomposed or made functional.

    Raises:
        ValueError: a shape is not static.
    """
    with torch.no_grad():
        program = torch.export.export(module, tuple(inputs), strict=False)
    _check_static(program.graph)
    leaves = pytree.tree_leaves((tuple(inputs), {}))
    places: dict[str, int] = {}
    attributes: dict[str, str] = {}
    constants: dict[str, Tensor] = {}
    num_inputs = 0
    for spec in program.graph_signature.input_specs:
        name, target = spec.arg.name, str(spec.target)
        if spec.kind == InputKind.USER_INPUT:
            if isinstance(leaves[num_inputs], Tensor):
                places[name] = num_inputs
            num_inputs += 1
        elif _attribute(module, target) is not None:
            attributes[name] = target
        else:
            constants[name] = program.constants[target]
    return Trace(list(program.graph.nodes), places, attributes, constants)


def bind(traced: Trace, module: nn.Module, inputs: Sequence[object]) -> StaticGraph:
    """Return the graph over the tensors of this module and these inputs.

    Raises:
        ValueError: the module has no such attribute, or there are fewer inputs.
    """
    leaves = pytree.tree_leaves((tuple(inputs), {}))
    placeholders = dict(traced.constants)
    for name, index in traced.inputs.items():
        if index >= len(leaves) or not isinstance(leaves[index], Tensor):
            raise ValueError(f"the graph takes input {index}, which is no tensor here")
        placeholders[name] = leaves[index]
    for name, path in traced.attributes.items():
        tensor = _attribute(module, path)
        if tensor is None:
            raise ValueError(f"the graph takes {path}, which the model does not have")
        placeholders[name] = tensor
    return StaticGraph(traced.nodes, placeholders)


def _attribute(module: nn.Module, path: str) -> Tensor | None:
    """Return the module's own tensor, so that graphs share it."""
    owner, _, name = path.rpartition(".")
    try:
        tensor: Tensor | None = getattr(module.get_submodule(owner), name, None)
    except AttributeError:
        return None
    return tensor


def _check_static(graph: fx.Graph) -> None:
    for node in graph.nodes:
        for value in pytree.tree_leaves(node.meta.get("val")):
            sizes = value.shape if isinstance(value, Tensor) else [value]
            if any(isinstance(size, torch.SymInt) for size in sizes):
                raise ValueError(f"{node.name} has a shape that is not static: {value}")
