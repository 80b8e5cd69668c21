"""What Linux tells about processes: CPU time of a process tree and of all others, peak memory.

Elsewhere than on Linux every answer is None: not known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
NUM_CPU_FIELDS = 8
"""user, nice, system, idle, iowait, irq, softirq, steal; guest time is part of user."""
IDLE, IOWAIT = 3, 4


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """Ticks of all CPUs together since the machine started."""

    total: int
    busy: int


class CpuWatch:
    """Tells what share of the CPUs processes outside one tree use, from now on."""

    def __init__(self, pid: int) -> None:
        """Begin to watch; ``pid`` is the root of the tree that is not counted."""
        self._pid = pid
        self._machine, self._tree = read_cpu(), tree_ticks(pid)

    def others_share(self) -> float | None:
        """Return the share of all CPU time since the start, 0 to 1, that others used.

        Time that a hypervisor gave to other machines counts as used by others.
        """
        machine, tree = read_cpu(), tree_ticks(self._pid)
        if machine is None or self._machine is None or machine.total == self._machine.total:
            return None
        others = machine.busy - self._machine.busy - (tree - self._tree)
        return max(0, others) / (machine.total - self._machine.total)


def read_cpu() -> CpuTicks | None:
    """Return the ticks of all CPUs together."""
    try:
        return parse_cpu((PROC / "stat").read_text())
    except OSError:
        return None


def parse_cpu(text: str) -> CpuTicks:
    """Read the first line of /proc/stat, as proc(5) describes it."""
    fields = [int(field) for field in text.splitlines()[0].split()[1 : 1 + NUM_CPU_FIELDS]]
    total = sum(fields)
    return CpuTicks(total, total - fields[IDLE] - fields[IOWAIT])


def tree_ticks(pid: int) -> int:
    """Return the CPU ticks of a process and its descendants, ended children included."""
    return sum(_process_ticks(one) for one in _tree(pid))


def peak_rss_bytes(pid: int) -> int | None:
    """Return the sum of the largest resident sizes of a process and its living descendants."""
    peaks = [_process_peak(one) for one in _tree(pid)]
    return sum(peaks) or None


def own_pss_bytes() -> int | None:
    """Return the memory of this process; of pages that others hold too, its share."""
    try:
        lines = (PROC / "self" / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    return kib[0] * 1024 if kib else None


def _tree(pid: int) -> Iterator[int]:
    yield pid
    try:
        lists = [path.read_text() for path in (PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        return
    for child in " ".join(lists).split():
        yield from _tree(int(child))


def _process_ticks(pid: int) -> int:
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return 0
    # The name in parentheses may hold spaces; utime, stime, cutime and cstime are fields 14 to 17.
    fields = text.rpartition(")")[2].split()
    return sum(int(field) for field in fields[11:15])


def _process_peak(pid: int) -> int:
    try:
        lines = (PROC / str(pid) / "status").read_text().splitlines()
    except OSError:
        return 0
    kib = [int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return kib[0] * 1024 if kib else 0
