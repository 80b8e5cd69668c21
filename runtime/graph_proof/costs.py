"""What a graph costs: bytes that it is given, gives and holds meanwhile, and FLOPs.

Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from ...kernels.neuron.operators import NAMESPACE
from .capture import Capture, Role
from .dataflow import owner, tensors_of, viewed


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Bytes and FLOPs of one graph.

    Attributes:
        weight_bytes: of the weights that it reads; what is shared counts once.
        cache_bytes: of its caches, all blocks.
        input_bytes: of its other inputs.
        output_bytes: of its results.
        intermediate_bytes: most that is alive at once if nodes run one by one, in order, and memory
            is given back after the last use. A compiler that fuses or reorders needs another
            number: it is what the graph asks of one that does neither.
        flops: of matrix products and attention, all rows and whole block tables counted, as
            graphs compute them: padding too. Elementwise work is not counted.
    """

    weight_bytes: int
    cache_bytes: int
    input_bytes: int
    output_bytes: int
    intermediate_bytes: int
    flops: int


def costs_of(capture: Capture) -> GraphCosts:
    """Return the costs of a graph; those of its nodes are 0 where it could not be captured."""
    read = [name for name, role in capture.roles.items() if role is Role.WEIGHT]
    used = {node.name for node in capture.nodes if node.users}
    weights = [capture.given[name] for name in read if name in used]
    caches = [one for one in capture.inputs if id(one) in capture.caches]
    others = [one for one in capture.inputs if id(one) not in capture.caches]
    results = [node for node in capture.nodes if node.op == "output"]
    outputs = [one for node in results for one in _results(node)]
    return GraphCosts(
        weight_bytes=_num_bytes(weights),
        cache_bytes=_num_bytes(caches),
        input_bytes=_num_bytes(others),
        output_bytes=sum(map(_bytes_of, outputs)),
        intermediate_bytes=_most_alive(capture.nodes),
        flops=sum(map(_flops, capture.calls)),
    )


def _results(output: fx.Node) -> list[Tensor]:
    return [one for node in output.all_input_nodes for one in tensors_of(node.meta.get("val"))]


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of distinct tensors."""
    return sum(_bytes_of(one) for one in {id(one): one for one in tensors}.values())


def _bytes_of(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _most_alive(nodes: Sequence[fx.Node]) -> int:
    """Return the most bytes that results of nodes take at once, results of the graph included."""
    last_use = {
        owner(source): place for place, node in enumerate(nodes) for source in node.all_input_nodes
    }
    ends: dict[int, int] = {}
    alive = most = 0
    for place, node in enumerate(nodes):
        if node.op == "call_function" and viewed(node) is None:
            size = sum(map(_bytes_of, tensors_of(node.meta.get("val"))))
            alive += size
            end = last_use.get(node, place)
            ends[end] = ends.get(end, 0) + size
        most = max(most, alive)
        alive -= ends.pop(place, 0)
    return most


def _flops(node: fx.Node) -> int:
    assert isinstance(node.target, torch._ops.OpOverload)
    packet = node.target.overloadpacket
    if node.target.namespace == NAMESPACE:
        formula = ATTENTION_FLOPS.get(node.target._schema.name.partition("::")[2])
        return 0 if formula is None else formula(*map(_value, node.args))
    if packet not in flop_registry:
        return 0
    values, named = map(_value, node.args), {key: _value(one) for key, one in node.kwargs.items()}
    return int(flop_registry[packet](*values, **named, out_val=node.meta["val"]))


def _value(argument: object) -> object:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def attention_flops(
    q_RHD: Tensor, k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, table: Tensor
) -> int:
    """Return the FLOPs of rows that attend to all tokens that one row of the table can name."""
    rows, heads, k_dim = q_RHD.shape
    num_tokens = table.shape[1] * k_cache_NBKD.shape[1]
    return 2 * rows * heads * num_tokens * (k_dim + v_cache_NBKD.shape[3])


def _attend(*arguments: object) -> int:
    q, k_cache, v_cache, table = arguments[:4]
    tensors = [one for one in (q, k_cache, v_cache, table) if isinstance(one, Tensor)]
    return attention_flops(*tensors)


ATTENTION_FLOPS: Mapping[str, Callable[..., int]] = MappingProxyType(
    {
        "attend_prefill": _attend,
        "attend_prefill_windowed": _attend,
        "attend_decode": _attend,
        "attend_decode_windowed": _attend,
    }
)
"""By operator; those that write or copy compute nothing."""
