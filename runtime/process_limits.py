"""What this process may use of the machine: CPUs and memory."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path


def usable_cpus() -> int:
    """Return the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory_bytes(root: Path = Path("/")) -> int:
    """Return the memory that this process can still take without swapping.

    That is what the machine has left, or what the control groups of the process leave, as in a
    container, where it is less. Cached file pages count as free: they are given up on demand.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    return min([_machine_bytes(root), *_cgroup_bytes(root)])


def _machine_bytes(root: Path) -> int:
    try:
        return _read_fields(root / "proc/meminfo")["MemAvailable:"] * 1024
    except (OSError, KeyError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _cgroup_bytes(root: Path) -> Iterator[int]:
    """Yield what each control group (version 2) around this process leaves; none: no limit."""
    mount = root / "sys/fs/cgroup"
    for folder in _cgroup_folders(root, mount):
        try:
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            stat = _read_fields(folder / "memory.stat")
        except (OSError, ValueError):  # no such group here, or the limit reads "max"
            continue
        cached = stat.get("inactive_file", 0) + stat.get("active_file", 0)
        yield max(limit - used + cached, 0)


def _cgroup_folders(root: Path, mount: Path) -> Iterator[Path]:
    """Yield the group of this process and those around it, up to the mount itself.

    A container sees its own group as the mount, whatever path the kernel tells.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    path = next((line[3:] for line in lines if line.startswith("0::")), "/")
    folder = mount / path.strip("/")
    yield folder
    if folder != mount:
        yield from (parent for parent in folder.parents if parent.is_relative_to(mount))


def _read_fields(path: Path) -> Mapping[str, int]:
    """Read lines of a name, a number and perhaps a unit."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1}
