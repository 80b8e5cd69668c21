"""The vendor's environment variables: which are set, and which contradict a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ...kernels.neuron.environment import CacheFolders, EnvironmentConflict, needed, prepare
from ...kernels.neuron.packages import Lack

PREFIXES = ("NEURON_", "TORCH_NEURONX_", "NKI_")
HIDDEN = "(hidden)"
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|(?:^|_)KEY(?:_|$)")
_USER_INFO = re.compile(r"://[^/@\s]*@")


def vendor_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the vendor's variables; what may be a password is hidden."""
    return {name: _shown(name, environ[name]) for name in sorted(environ) if _is_vendors(name)}


def contradictions(environ: Mapping[str, str], target: str) -> Iterator[Lack]:
    """Yield the variables that must have another value, or none, to run on ``target``."""
    folders = CacheFolders(Path())
    left = dict(environ)
    for name, value in needed(target, folders).items():
        if left.get(name, value) != value:
            chosen = "a folder of its process" if name in folders.variables else value
            text = f"{name} is {_shown(name, left.pop(name))}, and Noria sets it to {chosen}"
            yield Lack(text, (f"unset {name}",))
    try:
        prepare(target, folders, left, imported=())
    except EnvironmentConflict as error:
        text = without_passwords(str(error))
        yield Lack(text, ("export NEURON_CC_FLAGS=...  # with what is said above",))


def without_passwords(text: str) -> str:
    """Return a text with what stands before the ``@`` of its addresses hidden."""
    return _USER_INFO.sub(f"://{HIDDEN}@", text)


def _is_vendors(name: str) -> bool:
    return name.startswith(PREFIXES)


def _shown(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else without_passwords(value)
