"""The vendor's environment variables: which are set, and which contradict a configuration."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

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
    # Kernels do not split their work over two cores: at 2 both would do all of it.
    wanted = {"NEURON_LOGICAL_NC_CONFIG": "1", "NEURON_PLATFORM_TARGET_OVERRIDE": target}
    for name, value in wanted.items():
        if environ.get(name, value) != value:
            text = f"{name} is {environ[name]}, and Noria sets it to {value}"
            yield Lack(text, (f"unset {name}",))


def without_passwords(text: str) -> str:
    """Return a text with what stands before the ``@`` of its addresses hidden."""
    return _USER_INFO.sub(f"://{HIDDEN}@", text)


def _is_vendors(name: str) -> bool:
    return name.startswith(PREFIXES)


def _shown(name: str, value: str) -> str:
    return HIDDEN if _SECRET.search(name) else without_passwords(value)
