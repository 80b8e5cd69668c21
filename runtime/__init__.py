"""The runtime: requests, devices and files. Public names are listed in ``__all__``.

Each name is imported when it is first used, so that reading a configuration or printing a help
page does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING

from .device_packages import load_devices_on_demand

if TYPE_CHECKING:
    from ..bucketing import NoBucketError
    from .config import Config, load_config
    from .conversation import Conversation
    from .errors import BackendError, ConfigError, ModelError, NoriaError, RequestError
    from .llm import LLM
    from .outputs import RequestOutput
    from .sampling_params import SamplingParams

    __version__: str

__all__ = [
    "LLM",
    "BackendError",
    "Config",
    "ConfigError",
    "Conversation",
    "ModelError",
    "NoBucketError",
    "NoriaError",
    "RequestError",
    "RequestOutput",
    "SamplingParams",
    "__version__",
    "load_config",
]

load_devices_on_demand()
_MODULES = MappingProxyType(
    {
        "LLM": ".llm",
        "BackendError": ".errors",
        "Config": ".config",
        "ConfigError": ".errors",
        "Conversation": ".conversation",
        "ModelError": ".errors",
        "NoBucketError": "..bucketing",
        "NoriaError": ".errors",
        "RequestError": ".errors",
        "RequestOutput": ".outputs",
        "SamplingParams": ".sampling_params",
        "load_config": ".config",
    }
)


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name == "__version__":
        return _installed_version()
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name], __name__), name)


def __dir__() -> list[str]:
    """List the public names, those not imported yet included."""
    return sorted({*globals(), *__all__})


def _installed_version() -> str:
    """Return the version of the installed package; a bare checkout has none."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("noria")
    except PackageNotFoundError:
        return "0+unknown"
