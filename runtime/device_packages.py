"""When device packages of torch are imported: by the backend that wants them, not with torch."""

from __future__ import annotations

import os
import sys
from collections.abc import Container, MutableMapping
from importlib.util import find_spec

AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def load_devices_on_demand(
    environ: MutableMapping[str, str] = os.environ, imported: Container[str] = sys.modules
) -> None:
    """Keep torch from importing torch_neuronx, which takes settings of ``backend: neuron`` then.

    Where that is not installed, nothing is changed; nor is what the user has set.
    """
    if "torch" not in imported and find_spec("torch_neuronx") is not None:
        environ.setdefault(AUTOLOAD, "0")
