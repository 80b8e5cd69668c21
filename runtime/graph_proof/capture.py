"""A graph as the backend `neuron` would be given it, and what its tensors stand for.

Dynamo reads the Python code, as ``torch.compile(fullgraph=True, dynamic=False)`` does on a device;
what it finds is run once on shapes and becomes one node per operator of aten or of our own.
In-place changes stay as they are: no operator is made functional, so that a graph says what it
changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from torch.utils import _pytree as pytree

from .source_lines import line_of_stack, line_of_trace
from .stops import GRAPH_BREAK, Stop, stop_of, stops_of_values

DEVICE = torch.device("meta")
"""Stands for the device: its tensors have shapes and no memory."""


class Role(Enum):
    """What a tensor is that a graph is given."""

    WEIGHT = "weight"
    CACHE = "cache"
    INPUT = "input"


@dataclass(frozen=True, slots=True)
class Capture:
    """What was captured of one graph.

    Attributes:
        name: of the graph in its engine.
        nodes: in order: placeholders, calls of operators, getitems, the output.
        roles: of each placeholder, by name.
        given: the tensor behind each placeholder, by name.
        inputs: all tensors that the graph is given beside weights, in order, also unused ones.
        caches: those of ``inputs`` that are caches, by identity.
        stops: why there is no graph, or no static one; ``nodes`` is empty then.
    """

    name: str
    nodes: Sequence[fx.Node]
    roles: Mapping[str, Role]
    given: Mapping[str, Tensor]
    inputs: Sequence[Tensor]
    caches: Collection[int]
    stops: Sequence[Stop] = ()

    @property
    def calls(self) -> Iterator[fx.Node]:
        """The operators in order, without getitems."""
        for node in self.nodes:
            if isinstance(node.target, torch._ops.OpOverload):
                yield node


def capture(
    name: str, module: nn.Module, inputs: Sequence[object], caches: Sequence[Tensor] = ()
) -> Capture:
    """Capture a module over (nested) inputs, of which only shapes and dtypes count.

    The module's buffers are moved to the device, which takes their memory away. ``caches`` are
    those among the inputs; they must be on the device.
    """
    _move_weights(module)
    arguments = pytree.tree_map_only(Tensor, _on_device, tuple(inputs))
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor)]
    cache_ids = {id(cache) for cache in caches}
    empty = Capture(name, (), {}, {}, leaves, cache_ids)
    read = _read_code(module, arguments)
    if isinstance(read, Stop):
        return _stopped(empty, [read])
    code, given = read
    if stops := stops_of_values(code.graph.nodes):
        return _stopped(empty, stops)
    try:
        with torch.no_grad(), preserve_node_meta():
            graph = make_fx(fx.Interpreter(code).run, tracing_mode="fake")(*given).graph
    except RuntimeError as error:
        return _stopped(empty, [stop_of(error, line_of_trace(error.__traceback__))])
    weights = {id(tensor) for tensor in module.buffers()}
    return _named(empty, list(graph.nodes), given, weights)


def _stopped(empty: Capture, stops: Sequence[Stop]) -> Capture:
    return Capture(empty.name, (), {}, {}, empty.inputs, empty.caches, stops)


def _named(
    empty: Capture, nodes: Sequence[fx.Node], given: Sequence[Tensor], weights: Collection[int]
) -> Capture:
    """Say what each placeholder stands for."""
    placeholders = [node.name for node in nodes if node.op == "placeholder"]
    by_name = dict(zip(placeholders, given, strict=True))

    def role(tensor: Tensor) -> Role:
        if id(tensor) in empty.caches:
            return Role.CACHE
        return Role.WEIGHT if id(tensor) in weights else Role.INPUT

    roles = {name: role(tensor) for name, tensor in by_name.items()}
    return Capture(empty.name, nodes, roles, by_name, empty.inputs, empty.caches)


class _Found(BaseException):
    """Ends Dynamo's work when it has the graph: guards and code are of no use here.

    No ``Exception``, which Dynamo would take for a failure of the backend.
    """


def _read_code(
    module: nn.Module, arguments: Sequence[object]
) -> tuple[fx.GraphModule, Sequence[Tensor]] | Stop:
    """Return what Dynamo reads, and the tensors behind its placeholders; or why it gave up."""
    found: list[tuple[fx.GraphModule, Sequence[Tensor]]] = []

    def backend(code: fx.GraphModule, given: Sequence[Tensor]) -> Callable[..., Any]:
        found.append((code, given))
        raise _Found

    torch._dynamo.reset()
    compiled = torch.compile(module, backend=backend, fullgraph=True, dynamic=False)
    try:
        with torch.no_grad(), _as_on_a_device():
            compiled(*arguments)
    except _Found:
        return found[0]
    except TorchDynamoException as error:
        return stop_of(error, line_of_stack(getattr(error, "real_stack", None)))
    except RuntimeError as error:
        return stop_of(error, line_of_trace(error.__traceback__))
    return Stop(GRAPH_BREAK, "nothing that runs an operator", "")


@contextmanager
def _as_on_a_device() -> Iterator[None]:
    """Read values of tensors as unknown numbers, so that each reading becomes a node."""
    settings = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
    with torch._dynamo.config.patch(settings):
        yield


def _move_weights(module: nn.Module) -> None:
    """Put all buffers of a module on the device, those that modules share as one."""
    moved: dict[int, Tensor] = {}
    kept = []
    for owner in module.modules():
        for name, tensor in owner._buffers.items():
            if tensor is not None:
                kept.append(tensor)  # so that no other gets its identity
                owner._buffers[name] = moved.setdefault(id(tensor), _on_device(tensor))


def _on_device(tensor: Tensor) -> Tensor:
    """Return the tensor if it is on the device, otherwise its shape there."""
    return tensor if tensor.device == DEVICE else tensor.to(DEVICE)


def operator_name(node: fx.Node) -> str:
    """Return the name of a node's operator with its overload, such as ``aten.mm.default``.

    An in-place operator has the name of the one that gives its result: compilers make it that one.
    """
    return re.sub(r"^(aten\.\w*[a-z])_\.", r"\1.", str(node.target))
