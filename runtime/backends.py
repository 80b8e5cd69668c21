"""The targets that a configuration can name, imported only when named."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..kernels.kernel_set import KernelSet
from .errors import BackendError


def _cpu() -> KernelSet:
    from ..kernels.cpu import CpuKernels

    return CpuKernels()


def _reference() -> KernelSet:
    from ..kernels.reference import ReferenceKernels

    return ReferenceKernels()


RUNNABLE: Mapping[str, Callable[[], KernelSet]] = MappingProxyType(
    {"cpu": _cpu, "reference": _reference}
)


def load_kernels(backend: str) -> KernelSet:
    """Return the kernels of a target.

    Raises:
        BackendError: the target cannot run in this version.
    """
    if backend not in RUNNABLE:
        raise BackendError(
            f"backend: {backend} cannot run in this version of Noria, which checks and plans for "
            f"it only; backends that run: {', '.join(RUNNABLE)}"
        )
    return RUNNABLE[backend]()
