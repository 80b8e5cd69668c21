"""The lines that install AWS's packages of the system: driver, runtime, tools."""

from __future__ import annotations

from .sources import Sources
from .system import Distribution

REPOSITORY = "https://apt.repos.neuron.amazonaws.com"
DRIVER = "aws-neuronx-dkms"
RUNTIME = ("aws-neuronx-runtime-lib", "aws-neuronx-collectives", "aws-neuronx-tools")
_KEY = f"{REPOSITORY}/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB"
_KEYRING = "/usr/share/keyrings/neuron-archive-keyring.gpg"
_LIST = "etc/apt/sources.list.d/neuron.list"
_HEADERS = "linux-headers-$(uname -r)"


def driver_lines(system: Distribution, sources: Sources) -> tuple[str, ...]:
    """Return what installs the driver, and the rest with it; on a host."""
    return _lines((_HEADERS, DRIVER, *RUNTIME), system, sources)


def runtime_lines(system: Distribution, sources: Sources) -> tuple[str, ...]:
    """Return what installs all but the driver; on a host or in a container."""
    return _lines(RUNTIME, system, sources)


def _lines(packages: tuple[str, ...], system: Distribution, sources: Sources) -> tuple[str, ...]:
    if not system.has_apt:
        names = ", ".join(one for one in packages if one != _HEADERS)
        return (f"install {names} from AWS's repository for this system",)
    sudo = sources.sudo
    install = f"{sudo}apt-get update && {sudo}apt-get install -y {' '.join(packages)}"
    if sources.text(_LIST) is not None:
        return (install,)
    entry = f"deb [signed-by={_KEYRING}] {REPOSITORY} {system.codename} main"
    return (
        f"curl -fsSL {_KEY} | {sudo}gpg --dearmor -o {_KEYRING}",
        f'echo "{entry}" | {sudo}tee /{_LIST}',
        install,
    )
