"""Registering the simulator as ``nki``, ``nki.isa`` and ``nki.language``."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from . import isa, language
from .simulate import jit, vendor_simulate
from .tensor import NkiTensor


def install() -> bool:
    """Let ``import nki`` find the simulator, unless the real ``nki.isa`` can be imported.

    The packages named nki on the general package index have no ``isa``: they are placeholders,
    and the simulator takes their place. Call this before importing kernels; calling it again
    changes nothing.

    Returns:
        Whether kernels imported from now on run in the simulator.
    """
    if sys.modules.get("nki.isa") is isa:
        return True
    if _has_real_isa():
        return False
    sys.modules.update(simulated_modules())
    return True


class RealNkiError(RuntimeError):
    """The real NKI is installed: kernels would import it beside the simulator."""


def require_simulator() -> None:
    """Install the simulator for kernels that are imported next.

    Raises:
        RealNkiError: kernels would run on the real NKI.
    """
    if not install():
        raise RealNkiError(
            "the simulator gives way to the real nki that is installed here; simulate in an "
            "environment without it"
        )


def simulated_modules() -> dict[str, ModuleType]:
    """Return the modules that take the place of the real ones, by their full names."""
    package = ModuleType("nki", "NKI as simulated on numpy.")
    typing = ModuleType("nki.typing", "Names for annotations of kernels.")
    vars(typing)["tensor"] = NkiTensor
    package.__path__ = []
    for name, value in (("jit", jit), ("simulate", vendor_simulate)):
        setattr(package, name, value)
    modules = {"nki": package}
    for name, module in (("isa", isa), ("language", language), ("typing", typing)):
        setattr(package, name, module)
        modules[f"nki.{name}"] = module
    return modules


def _has_real_isa() -> bool:
    try:
        return importlib.util.find_spec("nki.isa") is not None
    except (ImportError, ValueError):  # no nki at all, or one without a spec
        return False
