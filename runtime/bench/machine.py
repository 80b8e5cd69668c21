"""What the machine can do at most, measured in seconds: read memory, multiply matrices."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .processes import CpuWatch

READ_BYTES = 512 * 2**20
"""Far beyond any cache."""
MATRIX_SIZE = 2048
NUM_REPEATS = 8


@dataclass(frozen=True, slots=True)
class Machine:
    """Measured limits of a machine.

    Attributes:
        cpu: what the processor calls itself.
        num_threads: threads that measured.
        read_bytes_s: bytes per second read from memory.
        flop_s: operations per second of a large matrix product, by dtype.
        others_share: share of the CPUs, 0 to 1, that others used meanwhile; None: not known.
    """

    cpu: str
    num_threads: int
    read_bytes_s: float
    flop_s: Mapping[str, float]
    others_share: float | None


def measure_machine(dtypes: Sequence[str], num_threads: int) -> Machine:
    """Measure with torch; takes a few seconds. The best of several repeats counts."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    watch = CpuWatch(os.getpid())
    try:
        read_bytes_s = _read_bytes_s()
        flop_s = {dtype: _flop_s(dtype) for dtype in dtypes}
    finally:
        torch.set_num_threads(before)
    return Machine(cpu_name(), num_threads, read_bytes_s, flop_s, watch.others_share())


def cpu_name() -> str:
    """Return the processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _read_bytes_s() -> float:
    import torch

    values = torch.ones(READ_BYTES // 4)
    # Which reduction keeps most loads in flight depends on the processor.
    reductions: list[Callable[[], object]] = [
        lambda: torch.sum(values),
        lambda: torch.max(values),
        lambda: torch.dot(values, values),
    ]
    return READ_BYTES / min(_best_seconds(reduction) for reduction in reductions)


def _flop_s(dtype: str) -> float:
    import torch

    a, b = (torch.ones(MATRIX_SIZE, MATRIX_SIZE, dtype=getattr(torch, dtype)) for _ in range(2))
    return 2 * MATRIX_SIZE**3 / _best_seconds(lambda: a @ b)


def _best_seconds(work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(NUM_REPEATS):
        start = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
