"""A trace as bytes and back: JSON of its nodes, without weights.

What is read was checked before (a compiled set has hashes), but nothing in it can run code: every
operator is looked up by name, and only those of torch and of this target exist.
"""

from __future__ import annotations

import functools
import json
import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from ..static_graph import Trace
from .operators import NAMESPACE

FORMAT = 1
_MAX_CONSTANT = 64
_NAMESPACES = (NAMESPACE, "aten")
_PLAIN = (bool, int, float, str, type(None))


def write_trace(traced: Trace) -> bytes:
    """Return the trace as bytes; equal traces give equal bytes.

    Raises:
        ValueError: a node holds what has no place in a file.
    """
    value = {
        "format": FORMAT,
        "inputs": dict(traced.inputs),
        "attributes": dict(traced.attributes),
        "constants": {name: _constant(name, one) for name, one in traced.constants.items()},
        "nodes": [_node(node) for node in traced.nodes],
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def read_trace(data: bytes) -> Trace:
    """Return the trace that ``write_trace`` wrote.

    Raises:
        ValueError: it is no trace of this format, or names an operator that does not exist here.
    """
    value = json.loads(data)
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise ValueError(f"a graph file of another format than {FORMAT}")
    graph = fx.Graph()  # which nodes must have, but it need not list them
    nodes: dict[str, fx.Node] = {}
    for one in value["nodes"]:
        node = _new_node(graph, one, nodes)
        nodes[one["name"]] = node
    constants = {name: _tensor(one) for name, one in value["constants"].items()}
    return Trace(list(nodes.values()), value["inputs"], value["attributes"], constants)


def _node(node: fx.Node) -> dict[str, Any]:
    value: dict[str, Any] = {"name": node.name, "op": node.op}
    if node.op == "call_function":
        value["target"] = _target_name(node.target)
        value["kwargs"] = {name: _encode(arg) for name, arg in node.kwargs.items()}
        is_torch = not value["target"].startswith((NAMESPACE, "getitem"))
        if is_torch:  # the shapes of this target's results follow from its arguments
            value["results"] = _specs(node.meta.get("val"))
    if node.op != "placeholder":
        value["args"] = _encode(node.args)
    return value


def _new_node(graph: fx.Graph, value: Mapping[str, Any], nodes: Mapping[str, fx.Node]) -> fx.Node:
    name, op = value["name"], value["op"]
    if op == "placeholder":
        return fx.Node(graph, name, op, name, (), {})
    args = _decode(value["args"], nodes)
    if op == "output":
        return fx.Node(graph, name, op, "output", tuple(args), {})
    target = _find_target(value["target"])
    kwargs = {key: _decode(arg, nodes) for key, arg in value["kwargs"].items()}
    node = fx.Node(graph, name, op, target, tuple(args), kwargs)
    if "results" in value:
        node.meta["val"] = _metas(value["results"])
    return node


def _target_name(target: object) -> str:
    if target is operator.getitem:
        return "getitem"
    if isinstance(target, torch._ops.OpOverload) and target.namespace in _NAMESPACES:
        return str(target)
    raise ValueError(f"a graph with {target} cannot be kept in a file")


@functools.cache
def _find_target(name: str) -> Any:
    if name == "getitem":
        return operator.getitem
    namespace, _, rest = name.partition(".")
    packet, _, overload = rest.rpartition(".")
    if namespace in _NAMESPACES:
        try:
            return getattr(getattr(getattr(torch.ops, namespace), packet), overload)
        except AttributeError:
            pass
    raise ValueError(f"the graph calls {name}, which does not exist here")


def _encode(value: Any) -> Any:
    """Return a value as JSON: what JSON lacks is an object of one key."""
    if isinstance(value, fx.Node):
        return {"node": value.name}
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, list | tuple):
        return [_encode(one) for one in value]
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {"device": "cpu"}
    if isinstance(value, torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    raise ValueError(f"a graph with an argument {value!r} cannot be kept in a file")


def _decode(value: Any, nodes: Mapping[str, fx.Node]) -> Any:
    if isinstance(value, list):
        return [_decode(one, nodes) for one in value]
    if not isinstance(value, dict):
        return value
    ((kind, name),) = value.items()
    if kind == "node":
        return nodes[name]
    return torch.device(name) if kind == "device" else _torch_constant(name)


def _torch_constant(name: str) -> Any:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype | torch.layout | torch.memory_format):
        raise ValueError(f"the graph names torch.{name}, which is no dtype, layout or format")
    return found


def _specs(value: Any) -> Any:
    """Return shape, stride and dtype of each tensor among an operator's results."""
    if isinstance(value, list | tuple):
        return [_specs(one) for one in value]
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {"shape": list(value.shape), "stride": list(value.stride()), "dtype": dtype}
    return None


def _metas(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_metas(one) for one in value)
    if value is None:
        return None
    dtype = _torch_constant(value["dtype"])
    return torch.empty_strided(value["shape"], value["stride"], dtype=dtype, device="meta")


def _constant(name: str, tensor: Tensor) -> dict[str, Any]:
    if tensor.numel() > _MAX_CONSTANT:
        raise ValueError(f"a graph with {tensor.numel()} numbers in {name} is not kept in a file")
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"dtype": dtype, "shape": list(tensor.shape), "values": tensor.flatten().tolist()}


def _tensor(value: Mapping[str, Any]) -> Tensor:
    dtype = _torch_constant(value["dtype"])
    return torch.tensor(value["values"], dtype=dtype).reshape(value["shape"])
