"""What each simulated instruction did: enough to sum bytes and times, no times itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of an instruction: its parameter name, and what the instruction saw of it.

    ``tensor`` is the storage's name: for a kernel's input, the name of the kernel's parameter.
    """

    role: str
    tensor: str
    shape: tuple[int, ...]
    dtype: str
    buffer: str


@dataclass(frozen=True, slots=True)
class Transfer:
    """What a DMA moved.

    Attributes:
        bytes: moved to the destination (its dtype's size times the elements moved).
        bytes_skipped: not moved because their index was out of bounds.
        descriptors: contiguous pieces moved.
        run_bytes: length of one contiguous piece, the shorter side's.
        live_partitions: SBUF partitions (rows, if no side is in SBUF) that took part.
        dge: who makes the descriptors ("unknown": the compiler chooses), "swdge" when indirect.
        indirect: "" or the role of the side whose rows a tensor of indices picks.
        transpose: whether elements are transposed on the way.
    """

    bytes: int
    bytes_skipped: int
    descriptors: int
    run_bytes: int
    live_partitions: int
    dge: str
    indirect: str = ""
    transpose: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One executed instruction.

    Attributes:
        engine: "tensor", "vector", "scalar", "gpsimd", "dma", or "sync" for registers.
        name: the function that the kernel called.
        label: its ``name`` argument, "" without one.
        where: ``file:line`` of the kernel.
        operands: tensors by role, the destination first.
        partitions: lanes in use (of the widest operand).
        elements: per partition (of the operand with the most); a matmul's moving columns.
        transfer: bytes and descriptors of a DMA, None of a compute instruction.
    """

    engine: str
    name: str
    label: str
    where: str
    operands: tuple[Operand, ...]
    partitions: int
    elements: int
    transfer: Transfer | None = None


@dataclass(slots=True)
class Trace:
    """Instructions in the order in which they ran."""

    instructions: list[Instruction] = field(default_factory=list)

    def __iter__(self) -> Iterator[Instruction]:
        """Iterate over the instructions."""
        return iter(self.instructions)

    def __len__(self) -> int:
        """Return how many instructions ran."""
        return len(self.instructions)
