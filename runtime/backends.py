"""The targets that a configuration can name, imported only when named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..kernels.neuron.generations import OLD_GENERATIONS, old_generation_text
from .errors import BackendError

if TYPE_CHECKING:
    from ..kernels.kernel_set import KernelSet


def _cpu(device: str | None, library: Path | None) -> KernelSet:
    from ..kernels.cpu import CpuKernels

    return CpuKernels(built=library)


def _reference(device: str | None, library: Path | None) -> KernelSet:
    from ..kernels.reference import ReferenceKernels

    return ReferenceKernels()


def _neuron_sim(device: str | None, library: Path | None) -> KernelSet:
    try:
        from ..kernels.nki.target import NkiSimKernels
    except ImportError as error:
        raise BackendError(
            f"backend: neuron-sim needs {error.name}; run: pip install 'noria[nki]'"
        ) from error
    from ..kernels.nki.simulator import RealNkiError

    try:
        return NkiSimKernels(device or "trn2")
    except RealNkiError as error:
        raise BackendError(f"backend: neuron-sim: {error}") from error


def _neuron(device: str | None, library: Path | None) -> KernelSet:
    from ..kernels.neuron.device_kernels import DeviceKernels
    from ..kernels.neuron.vendor import VendorError

    try:
        return DeviceKernels.of_this_machine(device or "trn2")
    except VendorError as error:
        raise BackendError(f"backend: neuron: {error}") from error


RUNNABLE: Mapping[str, Callable[[str | None, Path | None], KernelSet]] = MappingProxyType(
    {"cpu": _cpu, "reference": _reference, "neuron-sim": _neuron_sim, "neuron": _neuron}
)


def load_kernels(
    backend: str, device: str | None = None, *, library: Path | None = None
) -> KernelSet:
    """Return the kernels of a backend for a device generation (``target:``).

    Args:
        backend: its name.
        device: the generation.
        library: of native kernels, built for a machine like this one: it is not built again.

    Raises:
        BackendError: it cannot run in this version, or nowhere.
    """
    if device in OLD_GENERATIONS:
        raise BackendError(
            f"target: {device} can be checked and planned for but not run: "
            f"{old_generation_text(device)}; run there with NxD Inference, or here with "
            "backend: cpu and no target"
        )
    if backend not in RUNNABLE:
        raise BackendError(
            f"backend: {backend} cannot run in this version of Noria, which checks and plans for "
            f"it only; backends that run: {', '.join(RUNNABLE)}"
        )
    return RUNNABLE[backend](device, library)
