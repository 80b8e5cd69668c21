"""What `backend: neuron` may run without, as far as AWS's documents say."""

from __future__ import annotations

from collections.abc import Iterator

from ...kernels.neuron.packages import NATIVE, WRITTEN_FOR, Kind, Lack
from .apt_lines import DRIVER, runtime_lines
from .facts import MachineFacts
from .neuron_devices import RUNTIME_FOLDER
from .sources import Sources

_SDK = "2.33"
_DRIVER = (2, 31)
"""Of that SDK. An older driver may lack what a newer runtime needs; the other way round is fine."""


def neuron_advice(facts: MachineFacts, sources: Sources) -> Iterator[Lack]:
    """Yield what would be better on a machine that has devices."""
    driver = facts.devices.driver_numbers
    if driver and driver < _DRIVER:
        whose = "the host's driver" if facts.container else "driver"
        text = f"{whose} {facts.devices.driver_version} is older than that of SDK {_SDK}"
        yield Lack(text, (f"sudo apt-get install --only-upgrade -y {DRIVER}",))
    if facts.devices.runtime is None:
        text = f"the runtime library libnrt.so is not in /{RUNTIME_FOLDER}"
        yield Lack(text, runtime_lines(facts.distribution, sources))
    native = facts.packages.get(NATIVE)
    if native is not None and native.kind is Kind.REAL and native.family != WRITTEN_FOR:
        text = f"torch-neuronx {native.version}: Noria is written for {WRITTEN_FOR}"
        yield Lack(text, ("python -m pytest -m neuron",))
