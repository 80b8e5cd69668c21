"""The one module that calls torch-neuronx; it is imported when a device is asked for, not before.

``data/vendor_calls.json`` says where each call and option is documented, in which SDK.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from . import operators
from .environment import (
    CacheFolders,
    EnvironmentConflict,
    compiler_settings,
    prepare,
    process_folders,
)
from .packages import VENDOR_PACKAGES, installed_packages, refusal

Compiled = Callable[..., tuple[Tensor, ...]]


class VendorError(RuntimeError):
    """There is no device to run on; one line says what to do."""


class Vendor(Protocol):
    """What Noria asks of a device and its compiler."""

    device: torch.device
    folders: CacheFolders

    def compile(self, module: nn.Module) -> Compiled:
        """Return the module, compiled at its first call for the shapes of that call alone."""

    def synchronize(self) -> None:
        """Wait for all queued work and for what is being compiled; its errors are raised here."""

    def only_compiled(self) -> Any:
        """Return a context in which compiling a module again is an error."""

    @property
    def versions(self) -> Mapping[str, str]:
        """What changes a compiled graph: packages and settings of the compiler."""


class TorchNeuronx:
    """The device ``neuron`` of native torch-neuronx."""

    def __init__(self, folders: CacheFolders) -> None:
        """Import the package, which takes its settings from the environment now.

        Raises:
            VendorError: it finds no device.
        """
        package: Any = importlib.import_module("torch_neuronx")
        self.folders = folders
        if not _neuron().is_available():
            raise VendorError("torch-neuronx finds no Neuron device; run `noria doctor`")
        self.device = _device()
        operators.register(package.nki_op)

    @property
    def versions(self) -> Mapping[str, str]:
        """Of the packages, and what of the environment the compiler reads."""
        packages = installed_packages(names=VENDOR_PACKAGES)
        return {**{name: one.version for name, one in packages.items()}, **compiler_settings()}

    def compile(self, module: nn.Module) -> Compiled:
        """Compile by torch.compile: one graph, or an error; static shapes."""
        compiled: Any = torch.compile(module, backend="neuron", fullgraph=True, dynamic=False)
        return compiled  # type: ignore[no-any-return]

    def synchronize(self) -> None:
        """Wait for the device."""
        _neuron().synchronize()

    def only_compiled(self) -> Any:
        """Refuse recompilation."""
        return torch.compiler.set_stance("fail_on_recompile")


def require_vendor(target: str) -> Vendor:
    """Return the device of this machine for a generation.

    Raises:
        VendorError: packages or a device are missing, or the environment contradicts.
    """
    if lacking := refusal():
        raise VendorError(lacking.removeprefix("backend: neuron: "))
    folders = process_folders()
    try:
        prepare(target, folders)
    except EnvironmentConflict as error:
        raise VendorError(str(error)) from error
    return TorchNeuronx(folders)


def _device() -> torch.device:
    return torch.device("neuron", _neuron().current_device())


def _neuron() -> Any:
    """Return ``torch.neuron``, which torch-neuronx adds to torch."""
    return vars(torch)["neuron"]
