"""Neuron devices and their driver, as the kernel shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from ...kernels.neuron.packages import version_numbers
from .sources import Sources

_DEVICE = re.compile(r"neuron\d+")
_GENERATION = re.compile(r"(trn|inf)\d")
_MODULE = "neuron"
RUNTIME_FOLDER = "opt/aws/neuron/lib"
_SYSFS = "sys/devices/virtual/neuron_device"


@dataclass(frozen=True, slots=True)
class NeuronDevices:
    """What there is of devices and driver.

    Attributes:
        files: names in ``/dev`` of devices that this process may be given.
        num_known: devices that the driver knows, visible here or not; 0 where it does not tell.
        cores: physical cores of the first one, as the driver tells it.
        generation: of the first one, ``trn2`` say; None: not told.
        has_driver: whether its module is loaded; None: not told.
        driver_version: of the loaded module.
        has_driver_files: whether the driver's package is installed, loaded or not.
        runtime: name of the runtime library; None: it is not where its package puts it.
    """

    files: tuple[str, ...] = ()
    num_known: int = 0
    cores: str | None = None
    generation: str | None = None
    has_driver: bool | None = None
    driver_version: str | None = None
    has_driver_files: bool = False
    runtime: str | None = None

    @property
    def driver_numbers(self) -> tuple[int, ...]:
        """The numbers of the loaded driver's version; none where it is not told."""
        return version_numbers(self.driver_version or "")


def neuron_devices(sources: Sources) -> NeuronDevices:
    """Return what there is of devices and driver."""
    known = [name for name in sources.names(_SYSFS) if _DEVICE.fullmatch(name)]
    first = f"{_SYSFS}/{known[0]}" if known else ""
    kind = sources.text(f"{first}/info/architecture/instance_type") if first else None
    return NeuronDevices(
        files=_device_files(sources),
        num_known=len(known),
        cores=sources.text(f"{first}/core_count") if first else None,
        generation=generation_of(kind),
        has_driver=_has_driver(sources),
        driver_version=sources.text(f"sys/module/{_MODULE}/version"),
        runtime=next(iter(_runtimes(sources)), None),
        has_driver_files=any(name.startswith("aws-neuronx-") for name in sources.names("usr/src")),
    )


def _runtimes(sources: Sources) -> list[str]:
    """Return names of the runtime library, the one with the most of a version first."""
    names = [name for name in sources.names(RUNTIME_FOLDER) if name.startswith("libnrt.so")]
    return sorted(names, key=len, reverse=True)


def generation_of(instance_type: str | None) -> str | None:
    """Return the device generation of an instance type; None: it has no such device.

    >>> generation_of("trn2u.48xlarge"), generation_of("Trn1"), generation_of("c7i.large")
    ('trn2', 'trn1', None)
    """
    match = _GENERATION.match((instance_type or "").lower())
    return match[0] if match else None


def _device_files(sources: Sources) -> tuple[str, ...]:
    names = [name for name in sources.names("dev") if _DEVICE.fullmatch(name)]
    return tuple(sorted(names, key=lambda name: int(name.removeprefix("neuron"))))


def _has_driver(sources: Sources) -> bool | None:
    modules = sources.text("proc/modules")
    if (sources.root / f"sys/module/{_MODULE}").is_dir():
        return True
    if modules is None:
        return None
    return any(line.split()[:1] == [_MODULE] for line in modules.splitlines())
