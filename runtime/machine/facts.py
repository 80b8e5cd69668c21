"""All facts about a machine that decide which backends run on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ...kernels.neuron.packages import TORCH, VENDOR_PACKAGES, Package, installed_packages
from .neuron_devices import NeuronDevices, generation_of, neuron_devices
from .processor import instruction_set, processor_name
from .sources import Sources
from .system import (
    Distribution,
    container,
    distribution,
    instance_type,
    total_memory_bytes,
    usable_memory_bytes,
)
from .variables import vendor_variables

COMPILERS = ("g++", "c++")
PACKAGES = (TORCH, "numpy", "ml_dtypes", *VENDOR_PACKAGES)
DLAMI_FOLDER = "opt"
_DLAMI_ENVIRONMENT = "aws_neuronx_venv_torch_neuronx_"


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """What a machine is.

    Attributes:
        instruction_set: that kernels in C++ are built for; None: not known.
        total_bytes: memory of the machine; ``free_bytes`` what a process can still take.
        container: its kind; None: no sign of one.
        instance: type of an EC2 instance; None: none as far as known.
        compiler: path of a C++ compiler; None: none on PATH.
        neuronx_cc: path of the vendor's compiler; None: not on PATH.
        dlami: path of an environment with a native torch-neuronx that AWS's machine image
            brings; None: there is none.
        variables: the vendor's, without passwords.
    """

    processor: str
    instruction_set: str | None
    num_cpus: int
    total_bytes: int
    free_bytes: int
    system: str
    architecture: str
    distribution: Distribution
    container: str | None
    instance: str | None
    python: tuple[int, int]
    compiler: str | None
    neuronx_cc: str | None
    dlami: str | None
    devices: NeuronDevices
    packages: Mapping[str, Package]
    variables: Mapping[str, str]

    @property
    def generation(self) -> str | None:
        """The generation of the devices here, as instance or driver tell; None: neither does."""
        return generation_of(self.instance) or self.devices.generation


def find_facts(sources: Sources) -> MachineFacts:
    """Look at a machine."""
    return MachineFacts(
        processor=processor_name(sources),
        instruction_set=instruction_set(sources),
        num_cpus=sources.num_cpus,
        total_bytes=total_memory_bytes(sources),
        free_bytes=usable_memory_bytes(sources),
        system=sources.system,
        architecture=sources.architecture,
        distribution=distribution(sources),
        container=container(sources),
        instance=instance_type(sources),
        python=sources.python,
        compiler=next(filter(None, map(sources.which, COMPILERS)), None),
        neuronx_cc=sources.which("neuronx-cc"),
        dlami=_dlami(sources),
        devices=neuron_devices(sources),
        packages=installed_packages(sources.package_folders, PACKAGES),
        variables=vendor_variables(sources.environ),
    )


def _dlami(sources: Sources) -> str | None:
    names = [n for n in sources.names(DLAMI_FOLDER) if n.startswith(_DLAMI_ENVIRONMENT)]
    return f"/{DLAMI_FOLDER}/{names[-1]}" if names else None
