"""What operators alias and change, from their schemas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx


def tensors_of(value: object) -> list[Tensor]:
    """Return the tensors among a node's value."""
    if isinstance(value, Tensor):
        return [value]
    return [one for one in value if isinstance(one, Tensor)] if isinstance(value, Sequence) else []


def operands(node: fx.Node) -> list[Tensor]:
    """Return the tensors that a call reads or changes."""
    return [one for source in node.all_input_nodes for one in tensors_of(source.meta.get("val"))]


def is_view(node: fx.Node) -> bool:
    """Tell whether what a node gives is part of a tensor before it, not all of one.

    What an in-place operator returns is the tensor that it changed.
    """
    source = viewed(node)
    if source is None:
        return False
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.is_mutable:
        return is_view(source)
    return True


def viewed(node: fx.Node) -> fx.Node | None:
    """Return the node whose memory a node's value is, None where it is its own."""
    if not isinstance(node.target, torch._ops.OpOverload):
        is_item = node.op == "call_function" and bool(node.all_input_nodes)
        return node.all_input_nodes[0] if is_item else None  # an item of several results
    schema = node.target._schema
    if not any(one.alias_info is not None for one in schema.returns):
        return None
    for argument, value in _arguments(node):
        if argument.alias_info is not None and isinstance(value, fx.Node):
            return value
    return None


def owner(node: fx.Node) -> fx.Node:
    """Return the node that made the memory of a node's value."""
    while (source := viewed(node)) is not None:
        node = source
    return node


def changed(node: fx.Node) -> Iterator[tuple[str, fx.Node]]:
    """Yield the arguments that a call changes: their names in the schema, and what they are."""
    for argument, value in _arguments(node):
        info = argument.alias_info
        if info is not None and info.is_write:
            values = value if isinstance(value, Sequence) else [value]
            yield from ((argument.name, one) for one in values if isinstance(one, fx.Node))


def _arguments(node: fx.Node) -> Iterator[tuple[torch.Argument, object]]:
    assert isinstance(node.target, torch._ops.OpOverload)
    for index, argument in enumerate(node.target._schema.arguments):
        if index < len(node.args) and not argument.kwarg_only:
            yield argument, node.args[index]
        elif argument.name in node.kwargs:
            yield argument, node.kwargs[argument.name]
