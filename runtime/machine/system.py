"""The system around a process: distribution, memory, container, instance of EC2."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ..process_limits import free_memory_bytes
from .sources import Sources

_EC2 = "Amazon EC2"
_DMI = "sys/devices/virtual/dmi/id"
_CGROUP_WORDS = ("docker", "kubepods", "containerd", "podman", "lxc")


@dataclass(frozen=True, slots=True)
class Distribution:
    """What /etc/os-release says; empty texts where it says nothing."""

    name: str = ""
    identity: str = ""
    like: str = ""
    version: str = ""
    codename: str = ""

    @property
    def has_apt(self) -> bool:
        """Whether its packages are Debian's."""
        return not {"debian", "ubuntu"}.isdisjoint([self.identity, *self.like.split()])


def distribution(sources: Sources) -> Distribution:
    """Return what the distribution is."""
    lines = (sources.text("etc/os-release") or "").splitlines()
    values: Mapping[str, str] = {
        name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)
    }
    keys = ("PRETTY_NAME", "ID", "ID_LIKE", "VERSION_ID", "VERSION_CODENAME")
    return Distribution(*(values.get(key, "") for key in keys))


def container(sources: Sources) -> str | None:
    """Return the kind of container around this process; None: no sign of one."""
    if "KUBERNETES_SERVICE_HOST" in sources.environ:
        return "Kubernetes"
    if (sources.root / ".dockerenv").exists():
        return "Docker"
    if (sources.root / "run/.containerenv").exists():
        return "Podman"
    groups = sources.text("proc/1/cgroup") or ""
    if any(word in groups for word in _CGROUP_WORDS):
        return "a container"
    return sources.environ.get("container") or None


def instance_type(sources: Sources) -> str | None:
    """Return the type of an EC2 instance; None: it is none, as far as this machine tells."""
    is_ec2 = sources.text(f"{_DMI}/sys_vendor") == _EC2
    return sources.text(f"{_DMI}/product_name") or None if is_ec2 else None


def total_memory_bytes(sources: Sources) -> int:
    """Return the memory of the machine."""
    for line in (sources.text("proc/meminfo") or "").splitlines():
        name, *words = line.split()
        if name == "MemTotal:" and words and words[0].isdigit():
            return int(words[0]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def usable_memory_bytes(sources: Sources) -> int:
    """Return the memory that a process can still take."""
    return free_memory_bytes(sources.root)
