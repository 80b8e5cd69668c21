"""How many worker processes a machine can take."""

from __future__ import annotations

from dataclasses import dataclass

from ..process_limits import free_memory_bytes, usable_cpus

WORKER_BYTES = 512 * 2**20
"""Memory of a worker with torch, one thread and graphs without weights, rounded up."""


@dataclass(frozen=True, slots=True)
class WorkerCount:
    """How many workers there are to be, and what bounds their number."""

    num: int
    reason: str


def count_workers(
    wanted: int | None, *, free_bytes: int | None = None, num_cpus: int | None = None
) -> WorkerCount:
    """Return how many workers this machine can take, at least one.

    There is one per CPU that this process may use, and one per ``WORKER_BYTES`` of memory that is
    free now (of the machine, or of the container if that is less), and no more than ``wanted``.
    """
    free = free_memory_bytes() if free_bytes is None else free_bytes
    cpus = usable_cpus() if num_cpus is None else num_cpus
    size = WORKER_BYTES // 2**20
    in_memory = WorkerCount(max(1, free // WORKER_BYTES), f"free memory, {size} MiB a worker")
    bounds = [WorkerCount(max(1, cpus), f"{cpus} CPUs"), in_memory]
    if wanted is not None:
        bounds.insert(0, WorkerCount(wanted, "as asked for"))
    return min(bounds, key=lambda bound: bound.num)
