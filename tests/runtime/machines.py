"""Machines to look at, built in a folder: files of the kernel, programs, packages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from installed_packages import ALL_REAL, install

from noria.kernels.neuron.packages import Lack
from noria.runtime.machine.facts import MachineFacts, find_facts
from noria.runtime.machine.sources import Sources
from noria.runtime.machine.verdicts import Verdict, verdicts

CPUINFO = (
    "processor\t: 0\nmodel name\t: Some Processor\n"
    "flags\t\t: fpu fma avx2 avx512f avx512vl avx512bw avx512dq avx512_bf16\n\n"
    "processor\t: 1\nmodel name\t: Another Processor\nflags\t\t: fpu\n"
)
UBUNTU = {"ID": "ubuntu", "ID_LIKE": "debian"}
UBUNTU_2604 = {**UBUNTU, "VERSION_ID": '"26.04"', "VERSION_CODENAME": "resolute"}
UBUNTU_2404 = {**UBUNTU, "VERSION_ID": '"24.04"', "VERSION_CODENAME": "noble"}
MODULES = "nvme 1 0 - Live 0x0\nneuronlike 1 0 - Live 0x0\n"
DLAMI = "opt/aws_neuronx_venv_torch_neuronx_2_14_0"
CPU_PACKAGES = {"torch": "2.13.0+cpu", "numpy": "2.4.0", "ml_dtypes": "0.5.0"}


@dataclass
class BuiltMachine:
    """A machine in a folder; methods add to it and return it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict)
    python: tuple[int, int] = (3, 12)
    system: str = "Linux"
    architecture: str = "x86_64"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def file(self, path: str, text: str = "") -> BuiltMachine:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return self

    def linux(
        self, release: Mapping[str, str] = UBUNTU_2604, modules: str = MODULES
    ) -> BuiltMachine:
        lines = [f"{name}={value}" for name, value in release.items()]
        self.file("etc/os-release", "\n".join([*lines, f'PRETTY_NAME="{release["ID"]} linux"', ""]))
        self.file("proc/meminfo", "MemTotal: 4096 kB\nMemAvailable: 1024 kB\n")
        return self.file("proc/cpuinfo", CPUINFO).file("proc/modules", modules)

    def ec2(self, kind: str) -> BuiltMachine:
        self.file("sys/devices/virtual/dmi/id/sys_vendor", "Amazon EC2\n")
        return self.file("sys/devices/virtual/dmi/id/product_name", f"{kind}\n")

    def runtime(self) -> BuiltMachine:
        for name in ("libnrt.so", "libnrt.so.2.35.30.0", "libnrt.so.1", "libnccom.so"):
            self.file(f"opt/aws/neuron/lib/{name}")
        return self

    def driver(self, version: str = "2.31.7.0") -> BuiltMachine:
        modules = f"{MODULES}neuron 1 0 - Live 0x0\n"
        return self.file("proc/modules", modules).file("sys/module/neuron/version", f"{version}\n")

    def devices(self, num: int) -> BuiltMachine:
        for number in range(num):
            folder = f"sys/devices/virtual/neuron_device/neuron{number}"
            self.file(f"dev/neuron{number}").file(f"{folder}/core_count", "8\n")
            self.file(f"{folder}/info/architecture/instance_type", "Trn2\n")
        return self

    def program(self, name: str, script: str = "") -> BuiltMachine:
        self.file(f"bin/{name}", f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / name).chmod(0o755)
        return self

    def packages(self, versions: Mapping[str, str], *, empty: bool = False) -> BuiltMachine:
        install(self.folder / "packages", dict(versions), empty=empty)
        return self

    def neuron_packages(self) -> BuiltMachine:
        return self.packages(ALL_REAL).program("neuronx-cc")

    def sources(self) -> Sources:
        return Sources(
            root=self.root,
            environ={"PATH": str(self.root / "bin"), **self.variables},
            package_folders=[str(self.folder / "packages")],
            python=self.python,
            python_path=str(self.root / "bin" / "python"),
            system=self.system,
            architecture=self.architecture,
            num_cpus=2,
            is_root=False,
        )

    def facts(self) -> MachineFacts:
        return find_facts(self.sources())

    def verdict(self, backend: str, target: str = "trn2") -> Verdict:
        return verdicts(self.facts(), self.sources(), target)[backend]

    def lacks(self, backend: str = "neuron", target: str = "trn2") -> list[Lack]:
        return list(self.verdict(backend, target).lacks)


def working_trn2(folder: Path) -> BuiltMachine:
    """Return an instance with all that it takes."""
    machine = BuiltMachine(folder).linux().ec2("trn2.3xlarge").driver().devices(1).runtime()
    return machine.program("python").neuron_packages()


def fresh_trn2(folder: Path) -> BuiltMachine:
    """Return an instance of plain Ubuntu, with Noria and torch."""
    machine = BuiltMachine(folder).linux().ec2("trn2.3xlarge").program("python")
    return machine.packages({"torch": "2.13.0+cpu"})


def laptop(folder: Path) -> BuiltMachine:
    """Return a machine of Linux that is no instance, without a compiler."""
    machine = BuiltMachine(folder).linux({"ID": "fedora", "VERSION_ID": "44"}).program("python")
    return machine.packages(CPU_PACKAGES)
