"""Storage behind tensors: its bytes, which of them were written, and when it was in use."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .dtypes import INTEGERS, Array, numpy_dtype
from .enums import ON_CHIP, MemoryRegion
from .errors import call_site, fail
from .generation import NUM_PARTITIONS

POISON = 4  # what unwritten integers hold, as in the vendor's simulator; floats hold NaN


@dataclass(slots=True)
class Life:
    """Where and when one on-chip tensor occupied memory.

    ``first`` and ``last`` number the instructions that wrote it first and used it last; -1: never.
    """

    name: str
    buffer: MemoryRegion
    rows: int
    bytes: int  # per partition
    where: str
    first: int = -1
    first_use: str = ""
    last: int = -1
    address: tuple[int, int] | None = None  # partition and byte, if the kernel allocates by hand

    def use(self, clock: int) -> None:
        """Note that instruction ``clock`` touches the tensor."""
        if self.first < 0:
            self.first = clock
            name, where = call_site()
            self.first_use = f"{where}: {name}"
        self.last = clock


class Storage:
    """Bytes of one tensor, row-major over its shape.

    ``written`` has one byte per byte of data: 0 unwritten, 1 written. ``by_matmul`` (PSUM only)
    says the same of matmuls. ``complete`` spares the look at ``written`` once all of it is 1.
    """

    __slots__ = (
        "buffer",
        "by_matmul",
        "complete",
        "data",
        "is_input",
        "life",
        "mutated",
        "name",
        "row_bytes",
        "written",
    )

    def __init__(self, data: Array, buffer: MemoryRegion, name: str, life: Life) -> None:
        """Take a flat uint8 array; ``row_bytes`` is one partition's part of it."""
        self.data = data
        self.buffer = buffer
        self.name = name
        self.life = life
        self.row_bytes = life.bytes
        self.is_input = False
        self.mutated = False
        self.complete = False
        self.written = np.zeros(0, np.uint8)
        self.by_matmul = np.zeros(0, np.uint8)


def allocate(shape: tuple[int, ...], dtype: str, buffer: MemoryRegion, name: str) -> Storage:
    """Return poisoned, unwritten storage for a tensor.

    Raises:
        SimulationError: the shape is no shape of that buffer, or one partition cannot hold it.
    """
    stored = numpy_dtype(dtype)
    if not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        fail(f"shape {shape} is not a tuple of positive integers")
    if buffer in ON_CHIP and len(shape) < 2:
        fail(f"a tensor in {buffer.value} has at least 2 dimensions, got shape {shape}")
    if buffer in ON_CHIP and shape[0] > NUM_PARTITIONS:
        fail(f"shape {shape} needs {shape[0]} partitions; {buffer.value} has {NUM_PARTITIONS}")
    poison = POISON if dtype in INTEGERS else math.nan
    data = np.full(math.prod(shape), poison, stored).view(np.uint8)
    life = Life(name, buffer, shape[0], data.size // shape[0], call_site()[1])
    storage = Storage(data, buffer, name, life)
    storage.written = np.zeros_like(data)
    if buffer is MemoryRegion.psum:
        storage.by_matmul = np.zeros_like(data)
    return storage


def wrap_input(array: Array, name: str, buffer: MemoryRegion) -> Storage:
    """Return storage that is a C-contiguous array of the caller; writes reach the caller."""
    data = array.reshape(-1).view(np.uint8)
    row_bytes = data.size // array.shape[0] if array.ndim and array.shape[0] else data.size
    storage = Storage(data, buffer, name, Life(name, buffer, 1, row_bytes, ""))
    storage.is_input = True
    storage.complete = True
    return storage
