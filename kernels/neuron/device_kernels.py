"""The KernelSet `neuron` on a device: memory, compiled graphs, and archives of them as traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from .device_graph import DeviceGraph, on_device
from .neff_cache import NeffCache
from .target import NeuronKernels
from .vendor import Vendor, require_vendor


class DeviceKernels(NeuronKernels):
    """Kernels of a Trainium device by native torch-neuronx.

    A trace is an archive of the files that the vendor's compiler made of a graph. Loading puts
    them where it looks first; a graph for which it then makes a file is not the traced one.
    """

    makes_traces = True

    def __init__(self, vendor: Vendor, target: str = "trn2", *, has_memory: bool = True) -> None:
        """Run on this device.

        Args:
            vendor: the device and its compiler.
            target: its generation.
            has_memory: whether ``zeros`` are on the device, or shapes until they are traced.
        """
        super().__init__(target, has_twins=False)
        self._vendor = vendor
        self._has_memory = has_memory
        self._neffs = NeffCache(vendor.folders.neff)
        self._settled: frozenset[str] | None = None

    @classmethod
    def of_this_machine(cls, target: str) -> DeviceKernels:
        """Return kernels of the device that is here.

        Raises:
            VendorError: it cannot be used; one line says what to do.
        """
        return cls(require_vendor(target), target)

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The generation, sources, the vendor's packages, and settings of its compiler."""
        return {**super().fingerprint, **self._vendor.versions}

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros on the device; made on the host, for there every new shape is compiled."""
        if not self._has_memory:
            return torch.zeros(tuple(shape), dtype=dtype, device="meta")
        return torch.zeros(tuple(shape), dtype=dtype).to(self._vendor.device)

    def is_on_device(self, tensor: Tensor) -> bool:
        """Tell whether a tensor is, or will be, in the device's memory."""
        return tensor.is_meta or tensor.device.type == self._vendor.device.type

    def settle(self) -> None:
        """Wait for the device; from now on nothing compiles but what ``load`` and ``compile`` ask.

        Raises:
            RuntimeError: something that is still queued failed.
        """
        self._vendor.synchronize()
        self._settled = self._neffs.names()

    def for_tracing(self) -> DeviceKernels:
        """Return kernels whose graphs have no memory until one is traced."""
        return DeviceKernels(self._vendor, self._target, has_memory=False)

    def trace(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor] = ()
    ) -> bytes:
        """Compile a graph, which runs it once, and return what the compiler made.

        A graph that the compiler takes for one that it has seen gives an empty archive.

        Raises:
            ValueError: the graph is not static.
            RuntimeError: it does not compile.
        """
        before = self._neffs.names()
        self._build(graph, inputs, outputs)
        return self._neffs.archive(self._neffs.names() - before)

    def load(
        self,
        traced: bytes,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
    ) -> Callable[[], None]:
        """Return what ``compile`` returns, by what ``trace`` returned.

        Raises:
            ValueError: the compiler had to make a file: it is no trace of this graph.
        """
        self._neffs.put(traced)
        before = self._neffs.names()
        built = self._build(graph, inputs, outputs)
        made = sorted(self._neffs.names() - before)
        if made:
            raise ValueError(f"the compiler made {', '.join(made)}, which the trace does not hold")
        return self._watched(built.run)

    def compile(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Compile one static graph over these very buffers; it runs once now.

        Raises:
            ValueError: it is not static, or its results do not fit ``outputs``.
            RuntimeError: it does not compile.
        """
        return self._watched(self._build(graph, inputs, outputs).run)

    def _build(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor]
    ) -> DeviceGraph:
        made: dict[int, Tensor] = {}

        def with_memory(tensor: Tensor) -> Tensor:
            if not tensor.is_meta:
                return tensor
            return made.setdefault(id(tensor), on_device(tensor, self._vendor.device))

        inputs, outputs = pytree.tree_map_only(Tensor, with_memory, (inputs, outputs))
        built = DeviceGraph(self._vendor, graph, inputs, outputs, self.is_on_device)
        if self._settled is not None:
            self._settled = self._neffs.names()
        return built

    def _watched(self, run: Callable[[], None]) -> Callable[[], None]:
        """Return ``run`` with a look at the compiler's files at every power of two of its runs.

        What torch.compile does not see is compiled too: an operator on the device outside of a
        graph.
        """
        num_runs = 0

        def watched() -> None:
            nonlocal num_runs
            run()
            num_runs += 1
            if num_runs & (num_runs - 1) == 0:
                self._check_settled()

        return watched

    def _check_settled(self) -> None:
        if self._settled is None:
            return
        new = sorted(self._neffs.names() - self._settled)
        if new:
            raise RuntimeError(f"{', '.join(new)} was compiled after warm-up; nothing may be then")
