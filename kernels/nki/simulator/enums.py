"""Enumerations of ``nki.isa`` and ``nki.language``, under their documented names (SDK 2.32)."""

from __future__ import annotations

from enum import Enum
from functools import total_ordering


class engine(Enum):
    """Engines of a NeuronCore."""

    unknown = 0
    tensor = 1
    scalar = 2
    gpsimd = 3
    dma = 4
    vector = 5
    sync = 6


class reduce_cmd(Enum):
    """What an instruction does to its engine's accumulator registers."""

    idle = 0
    reset = 1
    reduce = 2
    reset_reduce = 3
    load_reduce = 4


class dge_mode(Enum):
    """Who generates the descriptors of a DMA."""

    unknown = 0
    swdge = 1
    hwdge = 2
    none = 3


class oob_mode(Enum):
    """What a DMA does with an index outside its tensor."""

    error = 0
    skip = 1


class matmul_perf_mode(Enum):
    """FP8 double rate of the tensor engine."""

    none = "none"
    double_row = "double_row"


class dma_engine(Enum):
    """Who carries a transfer between two cores."""

    dma = 1
    gpsimd_dma = 2


@total_ordering
class nc_version(Enum):
    """Generations of the NeuronCore: trn1 and inf2, trn2, trn3. Public kernels compare them."""

    gen2 = 2
    gen3 = 3
    gen4 = 4

    def __lt__(self, other: nc_version) -> bool:
        """Return whether this generation is the older one."""
        return self.value < other.value


class MemoryRegion(Enum):
    """Where a tensor lives."""

    sbuf = "sbuf"
    psum = "psum"
    private_hbm = "private_hbm"
    shared_hbm = "shared_hbm"


ON_CHIP = (MemoryRegion.sbuf, MemoryRegion.psum)
