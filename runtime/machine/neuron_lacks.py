"""What `backend: neuron` lacks on a machine, in the order in which it is to be put right."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...kernels.neuron.generations import (
    NATIVE_GENERATIONS,
    OLD_GENERATIONS,
    old_generation_text,
)
from ...kernels.neuron.packages import COMPILER, NATIVE, Kind, Lack, package_lacks
from .apt_lines import driver_lines
from .facts import MachineFacts
from .sources import Sources
from .system import Distribution
from .variables import contradictions

_WHEELS_FOR = ("ubuntu", "26.04")
_OTHER_INSTANCE = "start an instance with such devices: trn2.3xlarge is the smallest"


def neuron_lacks(facts: MachineFacts, sources: Sources, target: str) -> list[Lack]:
    """Return what is missing to run on devices of a generation.

    Where the machine itself cannot do it, nothing else counts.

    Args:
        facts: about the machine.
        sources: they came from.
        target: the generation that a configuration names.
    """
    hopeless = _hopeless(facts, target)
    if hopeless:
        return [hopeless]
    lacks = [*_device_lacks(facts, sources), *_software_lacks(facts, sources)]
    return [*lacks, *contradictions(sources.environ, target)]


def _hopeless(facts: MachineFacts, target: str) -> Lack | None:
    """Return why no installing helps here."""
    if target in OLD_GENERATIONS:
        lines = (f"run on {target} with NxD Inference of SDK 2.31, or set target: trn2",)
        return Lack(f"target: {target}: {old_generation_text(target)}", lines)
    if facts.generation in OLD_GENERATIONS:
        text = old_generation_text(facts.generation)
        return Lack(f"{facts.instance or facts.generation}: {text}", (_OTHER_INSTANCE,))
    if (facts.system, facts.architecture) != ("Linux", "x86_64"):
        text = f"{facts.system} on {facts.architecture}: AWS's packages are for Linux on x86_64"
        return Lack(text, (_OTHER_INSTANCE,))
    if facts.instance and facts.generation not in NATIVE_GENERATIONS and not facts.devices.files:
        text = f"{facts.instance} has no Neuron device of trn2 or trn3"
        return Lack(text, (_OTHER_INSTANCE,))
    if facts.generation and facts.generation != target:
        text = f"target: {target}, and the devices here are {facts.generation}"
        return Lack(text, (f"set target: {facts.generation} in the configuration",))
    return None


def _device_lacks(facts: MachineFacts, sources: Sources) -> Iterator[Lack]:
    devices = facts.devices
    if devices.files:
        yield from _gaps(devices.files)
    elif not (facts.generation or devices.has_driver or facts.container):
        text = "no Neuron device, and as far as known this is no instance of EC2"
        yield Lack(text, (_OTHER_INSTANCE,))
    elif facts.container:
        yield Lack(_hidden_text(facts), _lines_for_container(facts))
    elif devices.has_driver:
        text = "the driver is loaded, and there is no device file /dev/neuron0"
        yield Lack(text, (f"{sources.sudo}dmesg | grep -i neuron",))
    elif devices.has_driver_files:
        text = "the driver is installed, but its module is not loaded"
        yield Lack(text, (f"{sources.sudo}modprobe neuron",))
    else:
        yield Lack("the driver is not installed", driver_lines(facts.distribution, sources))


def _gaps(files: Sequence[str]) -> Iterator[Lack]:
    """Yield that the runtime could not open devices with these numbers."""
    numbers = [int(name.removeprefix("neuron")) for name in files]
    if numbers[-1] - numbers[0] >= len(numbers):
        text = f"device files are {', '.join(files)}: the runtime wants consecutive numbers"
        yield Lack(text, ("give the container devices whose numbers follow each other",))


def _hidden_text(facts: MachineFacts) -> str:
    if facts.devices.has_driver:
        return "the driver is loaded, but this container was given no device file /dev/neuron*"
    return "this container has no device file /dev/neuron*, and the driver belongs on its host"


def _lines_for_container(facts: MachineFacts) -> tuple[str, ...]:
    if facts.container == "Kubernetes":
        return ("resources: {limits: {aws.amazon.com/neuron: 1}}  # of the container, in its pod",)
    return ("docker run --device=/dev/neuron0 ...  # once for each device",)


def _software_lacks(facts: MachineFacts, sources: Sources) -> Iterator[Lack]:
    native = facts.packages.get(NATIVE)
    has_native = native is not None and native.kind is Kind.REAL
    if not has_native and not _takes_wheels(facts.distribution):
        yield _system_lack(facts)
        if facts.dlami:  # has all that follows
            return
    yield from package_lacks(facts.packages, facts.python, sources.python_command, sources.which)
    compiler = facts.packages.get(COMPILER)
    if compiler is not None and compiler.kind is Kind.REAL and facts.neuronx_cc is None:
        folder = Path(sources.python_path).parent
        yield Lack("neuronx-cc is not on PATH", (f'export PATH="{folder}:$PATH"',))


def _takes_wheels(system: Distribution) -> bool:
    return (system.identity, system.version) == _WHEELS_FOR


def _system_lack(facts: MachineFacts) -> Lack:
    name = facts.distribution.name or "a system without /etc/os-release"
    text = f"{name}: wheels of torch-neuronx outside AWS's machine images are for Ubuntu 26.04 only"
    if facts.dlami:
        activate = f". {facts.dlami}/bin/activate"
        return Lack(text, (f"{activate} && python -m pip install -e .  # in Noria's own folder",))
    if facts.container:
        return Lack(text, ("build the image FROM ubuntu:26.04",))
    return Lack(text, ("start the instance from the Deep Learning AMI Neuron, or Ubuntu 26.04",))
