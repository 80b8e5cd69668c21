"""Storage behind tensors: its bytes, which of them were written, and when it was in use."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from .dtypes import Array, numpy_dtype
from .enums import ON_CHIP, MemoryRegion
from .errors import SimulationError, call_site, fail
from .generation import NUM_PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, Generation

POISON = 0xFF  # NaN in every float dtype, -1 in every signed integer


@dataclass(slots=True)
class Life:
    """Where and when one on-chip tensor occupied memory.

    ``first`` and ``last`` number the instructions that wrote it first and used it last; -1: never.
    """

    name: str
    buffer: MemoryRegion
    bytes: int  # per partition
    where: str
    first: int = -1
    first_use: str = ""
    last: int = -1

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
    itemsize = numpy_dtype(dtype).itemsize
    if not shape or any(not isinstance(n, int) or n < 1 for n in shape):
        fail(f"shape {shape} is not a tuple of positive integers")
    if buffer in ON_CHIP and len(shape) < 2:
        fail(f"a tensor in {buffer.value} has at least 2 dimensions, got shape {shape}")
    if buffer in ON_CHIP and shape[0] > NUM_PARTITIONS:
        fail(f"shape {shape} needs {shape[0]} partitions; {buffer.value} has {NUM_PARTITIONS}")
    row_bytes = prod(shape[1:]) * itemsize
    data = np.full(shape[0] * row_bytes, POISON, np.uint8)
    life = Life(name, buffer, row_bytes, call_site()[1])
    storage = Storage(data, buffer, name, life)
    storage.written = np.zeros_like(data)
    if buffer is MemoryRegion.psum:
        storage.by_matmul = np.zeros_like(data)
    return storage


def wrap_input(array: Array, name: str, buffer: MemoryRegion) -> Storage:
    """Return storage that is a C-contiguous array of the caller; writes reach the caller."""
    data = array.reshape(-1).view(np.uint8)
    row_bytes = data.size // array.shape[0] if array.ndim and array.shape[0] else data.size
    storage = Storage(data, buffer, name, Life(name, buffer, row_bytes, ""))
    storage.is_input = True
    storage.complete = True
    return storage


def check_row(life: Life, generation: Generation) -> None:
    """Check that one tensor alone fits into a partition.

    Raises:
        SimulationError: it does not.
    """
    limit = capacity(life.buffer, generation)
    if life.bytes > limit:
        fail(
            f"{life.bytes} bytes per partition exceed the {limit} bytes that a partition of "
            f"{life.buffer.value} has on {generation.name}"
        )


def capacity(buffer: MemoryRegion, generation: Generation) -> int:
    """Return the bytes per partition of SBUF or PSUM."""
    return generation.sbuf_bytes if buffer is MemoryRegion.sbuf else PSUM_BANKS * PSUM_BANK_BYTES


def check_capacity(lives: list[Life], generation: Generation) -> None:
    """Check that the tensors in use at any one time fit into SBUF and into the banks of PSUM.

    A tensor occupies memory from the instruction that writes it first to the one that uses it
    last, as under a compiler that allocates by liveness. Every tensor starts at partition 0, so
    narrow tensors do not share the bytes of a partition. In PSUM a tensor of up to one bank lies
    within one bank, and a larger one takes whole neighbouring banks.

    Raises:
        SimulationError: naming the instruction at which memory runs out, and the largest tensors.
    """
    used = sorted((life for life in lives if life.first >= 0), key=lambda life: life.first)
    for buffer in ON_CHIP:
        live: list[Life] = []
        banks = [PSUM_BANK_BYTES] * PSUM_BANKS
        held: dict[int, list[tuple[int, int]]] = {}
        for life in (life for life in used if life.buffer is buffer):
            for gone in (old for old in live if old.last < life.first):
                for bank, size in held.pop(id(gone), []):
                    banks[bank] += size
            live = [old for old in live if old.last >= life.first] + [life]
            if buffer is MemoryRegion.psum:
                held[id(life)] = place(life.bytes, banks)
                fits = bool(held[id(life)])
            else:
                fits = sum(old.bytes for old in live) <= generation.sbuf_bytes
            if not fits:
                _raise_full(life, live, generation)


def place(size: int, banks: list[int]) -> list[tuple[int, int]]:
    """Take ``size`` bytes from the free bytes of the banks; return (bank, bytes), [] if full."""
    if size <= PSUM_BANK_BYTES:
        runs = [[bank] for bank in range(PSUM_BANKS) if banks[bank] >= size]
    else:
        count = -(-size // PSUM_BANK_BYTES)
        windows = [list(range(start, start + count)) for start in range(PSUM_BANKS - count + 1)]
        runs = [run for run in windows if all(banks[bank] == PSUM_BANK_BYTES for bank in run)]
    if not runs:
        return []
    share = min(size, PSUM_BANK_BYTES)
    for bank in runs[0]:
        banks[bank] -= share
    return [(bank, share) for bank in runs[0]]


def _raise_full(life: Life, live: list[Life], generation: Generation) -> None:
    where, _, instruction = life.first_use.rpartition(": ")
    largest = sorted(live, key=lambda old: -old.bytes)[:4]
    names = ", ".join(f"{old.name or 'tensor'} ({old.bytes} bytes, {old.where})" for old in largest)
    unit = "in 8 banks of 2048" if life.buffer is MemoryRegion.psum else "in all"
    raise SimulationError(
        where,
        instruction,
        f"{life.buffer.value} is full: {sum(old.bytes for old in live)} bytes per partition are "
        f"live in {len(live)} tensors, {generation.name} has "
        f"{capacity(life.buffer, generation)} {unit}; the largest: {names}",
    )
