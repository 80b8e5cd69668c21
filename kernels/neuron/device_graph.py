"""One static graph over its buffers: what is on the device stays, what the host fills is sent.

The host's tensors of one dtype go to the device as one, by one copy a step; the graph cuts them
apart. What the graph returns is written on the device by the graph itself, into buffers that are
there, or is copied to the host once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from ..contract import check_tensor
from ..static_graph import bind, trace
from .vendor import Vendor

IsOnDevice = Callable[[Tensor], bool]


@dataclass(frozen=True, slots=True)
class Sent:
    """A host tensor's place in what is sent: elements from ``start`` on."""

    tensor: Tensor
    start: int

    @property
    def end(self) -> int:
        """Where the next one begins."""
        return self.start + self.tensor.numel()


class Sending:
    """The host's tensors of one dtype, and the one tensor on the device that has them all."""

    def __init__(self, tensors: Sequence[Tensor], device: torch.device) -> None:
        """Allocate it; send nothing yet."""
        self.parts: list[Sent] = []
        for tensor in tensors:
            self.parts.append(Sent(tensor, self.parts[-1].end if self.parts else 0))
        self._staging = torch.zeros(self.parts[-1].end, dtype=tensors[0].dtype)
        self._views = [self._staging[one.start : one.end] for one in self.parts]
        self.on_device = self._staging.to(device, copy=True)

    def send(self) -> None:
        """Copy what the host's tensors hold now."""
        for view, part in zip(self._views, self.parts, strict=True):
            view.copy_(part.tensor.reshape(-1))
        self.on_device.copy_(self._staging)


class DeviceStep(nn.Module):
    """A graph with its arguments cut out of what was sent, and its results where they belong."""

    def __init__(
        self,
        graph: nn.Module,
        tree: pytree.TreeSpec,
        *,
        places: Sequence[tuple[int, Sent | None]],
        outputs: Sequence[int | None],
        shapes: Sequence[tuple[tuple[int, ...], torch.dtype]],
    ) -> None:
        """Describe the graph's arguments and results.

        Args:
            graph: what is run.
            tree: how its arguments are nested.
            places: of each leaf of them: which sent tensor it is a part of, and which part; or
                which tensor on the device it is.
            outputs: which tensor on the device takes each result; None returns it.
            shapes: of the results.
        """
        super().__init__()
        self.graph = graph
        self._tree = tree
        self._places = places
        self._outputs = outputs
        self._shapes = shapes

    def forward(self, sent: list[Tensor], kept: list[Tensor]) -> tuple[Tensor, ...]:
        """Run the graph; return what the host is to have."""
        leaves = [
            kept[index] if part is None else _cut(sent[index], part) for index, part in self._places
        ]
        returned = self.graph(*pytree.tree_unflatten(leaves, self._tree))
        results = () if returned is None else returned
        results = (results,) if isinstance(results, Tensor) else tuple(results)
        if len(results) != len(self._shapes):
            raise ValueError(f"the graph returns {len(results)} values, not {len(self._shapes)}")
        for result, (shape, dtype) in zip(results, self._shapes, strict=True):
            check_tensor("graph output", result, shape, dtype)
        # An output may be an input, of which another result is a view.
        results = tuple(result.clone() for result in results)
        for result, index in zip(results, self._outputs, strict=True):
            if index is not None:
                kept[index].copy_(result)
        pairs = zip(results, self._outputs, strict=True)
        return tuple(result for result, index in pairs if index is None)


class DeviceGraph:
    """A graph that is compiled for a device and bound to its buffers."""

    def __init__(
        self,
        vendor: Vendor,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
        is_on_device: IsOnDevice,
    ) -> None:
        """Capture the graph and compile it, which runs it once.

        Raises:
            ValueError: it is not static, or its results do not fit ``outputs``.
            RuntimeError: it does not compile.
        """
        self._vendor = vendor
        move_weights(graph, vendor.device)
        leaves, tree = pytree.tree_flatten(tuple(inputs))
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        kept: list[Tensor] = []
        for leaf in [*leaves, *outputs]:
            if is_on_device(leaf):
                _index(kept, leaf, add=True)
        for leaf in leaves:
            if not is_on_device(leaf):
                by_dtype.setdefault(leaf.dtype, []).append(leaf)
        self._sending = [Sending(tensors, vendor.device) for tensors in by_dtype.values()]
        step = DeviceStep(
            graph,
            tree,
            places=[self._place(leaf, kept, is_on_device) for leaf in leaves],
            outputs=[_index(kept, one) if is_on_device(one) else None for one in outputs],
            shapes=[(tuple(one.shape), one.dtype) for one in outputs],
        )
        self._host_outputs = [one for one in outputs if not is_on_device(one)]
        self._compile(step, [one.on_device for one in self._sending], kept)

    def run(self) -> None:
        """Run once over the buffers, as they are now.

        Raises:
            RuntimeError: it would have to be compiled again.
        """
        for one in self._sending:
            one.send()
        # What was compiled is for the modes of torch that were on: the same ones here and there.
        with self._vendor.only_compiled(), torch.no_grad():
            results = self._compiled(*self._tensors)
        self._finish(results)

    def _place(
        self, leaf: Tensor, kept: list[Tensor], is_on_device: IsOnDevice
    ) -> tuple[int, Sent | None]:
        if is_on_device(leaf):
            return _index(kept, leaf), None
        return next(
            (index, part)
            for index, sending in enumerate(self._sending)
            for part in sending.parts
            if part.tensor is leaf
        )

    def _compile(self, step: DeviceStep, sent: list[Tensor], kept: list[Tensor]) -> None:
        traced = trace(step, [sent, kept])
        static = bind(traced, step, [sent, kept])
        names = [node.name for node in traced.nodes if node.op == "placeholder"]
        self._tensors = [static.placeholders[name].to(self._vendor.device) for name in names]
        # A module of its own has code of its own: what is compiled for others is never looked at.
        module = fx.GraphModule(nn.Module(), traced.nodes[0].graph)
        self._compiled = self._vendor.compile(module)
        for one in self._sending:
            one.send()
        with torch.no_grad():
            results = self._compiled(*self._tensors)
        self._vendor.synchronize()
        self._finish(results)

    def _finish(self, results: tuple[Tensor, ...]) -> None:
        for output, result in zip(self._host_outputs, results, strict=True):
            output.copy_(result)


def move_weights(module: nn.Module, device: torch.device) -> None:
    """Move all buffers of a module to a device, tied ones as one, once.

    Those without memory get memory of any content: what they are multiplied with is not looked at.
    """
    moved: dict[tuple[object, ...], Tensor] = {}
    for owner in module.modules():
        assert not owner._parameters, "weights are buffers"
        for name, tensor in owner._buffers.items():
            if tensor is None or tensor.device == device:
                continue
            key = (id(tensor),) if tensor.is_meta else _place_of(tensor)
            if key not in moved:
                moved[key] = on_device(tensor, device)
            owner._buffers[name] = moved[key]


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor's copy on a device; zeros for one without memory."""
    if tensor.is_meta:
        return torch.zeros(tensor.shape, dtype=tensor.dtype).to(device)
    return tensor.to(device)


def _place_of(tensor: Tensor) -> tuple[object, ...]:
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tensor.stride()


def _cut(sent: Tensor, part: Sent) -> Tensor:
    return sent[part.start : part.end].view(part.tensor.shape)


def _index(tensors: list[Tensor], tensor: Tensor, *, add: bool = False) -> int:
    """Return where a very tensor is in a list, which takes it first if ``add``."""
    for index, one in enumerate(tensors):
        if one is tensor:
            return index
    assert add, "every tensor on the device was listed"
    tensors.append(tensor)
    return len(tensors) - 1
