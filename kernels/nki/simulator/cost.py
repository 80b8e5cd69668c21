"""From a trace to times: an estimate of what each engine of one NeuronCore would take.

The numbers are the vendor's published ones (architecture guides, DMA bandwidth guide, API notes);
the two that are not are marked. Nothing here was measured on a device: compare estimates with
each other, do not promise them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from .generation import NUM_PARTITIONS, generation_of
from .trace import Instruction, Transfer

ENGINES = ("dma", "tensor", "vector", "scalar", "gpsimd")
NUM_DMA_ENGINES = 16
PARTITIONS_PER_DMA_ENGINE = NUM_PARTITIONS // NUM_DMA_ENGINES
# Fitted by us to what the DMA guide says of 256 B, 2 KiB and 4 KiB pieces.
HALF_SPEED_RUN_BYTES = 512
DMA_START_S = 1.3e-6
HARDWARE_DGE_S = 0.6e-6
TRANSPOSE_FROM_HBM = 0.9
TRANSPOSE_ON_CHIP = 0.5
MIN_INTERVAL_CYCLES = 64
FP32_MATMUL_PASSES = 4
LOAD_STATIONARY_SPEEDUP = 4
# The guides say 60 to 100.
FIXED_CYCLES = 80
# Assumed: the guides say that GpSimd makes these descriptors, not how fast.
CYCLES_PER_SOFTWARE_DESCRIPTOR = 1


@dataclass(frozen=True, slots=True)
class Hardware:
    """What one NeuronCore has.

    ``hbm_bytes_per_s`` is its share of the chip's; ``dma_bytes_per_s`` is of all 16 DMA engines;
    clocks are in Hz; ``has_fast_copy``: the vector engine takes 2-byte SBUF data twice as fast.
    """

    hbm_bytes_per_s: float
    dma_bytes_per_s: float
    tensor_hz: float
    vector_hz: float
    scalar_hz: float
    gpsimd_hz: float
    has_fast_copy: bool

    def hertz(self, engine: str) -> float:
        """Return the clock of a compute engine."""
        clocks = {"tensor": self.tensor_hz, "vector": self.vector_hz, "scalar": self.scalar_hz}
        return clocks.get(engine, self.gpsimd_hz)


HARDWARE = {
    "trn1": Hardware(410e9, 272e9, 2.8e9, 1.12e9, 1.4e9, 1.4e9, has_fast_copy=False),
    "trn2": Hardware(362e9, 368e9, 2.4e9, 0.96e9, 1.2e9, 1.2e9, has_fast_copy=True),
    "trn3": Hardware(612e9, 528e9, 2.4e9, 1.2e9, 1.2e9, 1.2e9, has_fast_copy=True),
}


@dataclass(frozen=True, slots=True)
class EngineTime:
    """Seconds of one engine: ``work_s`` grows with the data, ``fixed_s`` with the instructions."""

    engine: str
    num_instructions: int
    work_s: float
    fixed_s: float

    @property
    def total_s(self) -> float:
        """Return the engine's time if nothing of it overlaps."""
        return self.work_s + self.fixed_s


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that DMAs moved, bytes that they skipped, and contiguous pieces that they moved."""

    moved_bytes: int
    skipped_bytes: int
    descriptors: int


@dataclass(frozen=True, slots=True)
class Cost:
    """The engines' times of a trace, one entry for each of ``ENGINES``, in that order."""

    engines: tuple[EngineTime, ...]

    @property
    def least_s(self) -> float:
        """Return the busiest engine's work: engines run in parallel, fixed costs may hide."""
        return max(engine.work_s for engine in self.engines)

    @property
    def most_s(self) -> float:
        """Return the time when nothing overlaps."""
        return sum(engine.total_s for engine in self.engines)


def estimate(trace: Iterable[Instruction], target: str) -> Cost:
    """Return the time that the instructions of a trace take on a target.

    Raises ValueError for an unknown target.
    """
    hardware = HARDWARE[generation_of(target).name]
    counts = dict.fromkeys(ENGINES, 0)
    work, fixed = dict.fromkeys(ENGINES, 0.0), dict.fromkeys(ENGINES, 0.0)
    for instruction in trace:
        for engine, work_s, fixed_s in _times(instruction, hardware):
            counts[engine] += engine == instruction.engine
            work[engine] += work_s
            fixed[engine] += fixed_s
    return Cost(tuple(EngineTime(e, counts[e], work[e], fixed[e]) for e in ENGINES))


def traffic(trace: Iterable[Instruction], tensors: Collection[str] = ()) -> Traffic:
    """Sum what DMAs moved from or to tensors of these names; without names, all that they moved."""
    found = [
        instruction.transfer
        for instruction in trace
        if instruction.transfer
        and (not tensors or any(operand.tensor in tensors for operand in instruction.operands))
    ]
    return Traffic(
        sum(transfer.bytes for transfer in found),
        sum(transfer.bytes_skipped for transfer in found),
        sum(transfer.descriptors for transfer in found),
    )


def _times(instruction: Instruction, hardware: Hardware) -> list[tuple[str, float, float]]:
    """Return (engine, work, fixed) of every engine that an instruction keeps busy."""
    transfer = instruction.transfer
    if transfer is None:
        if instruction.engine not in ENGINES:  # registers: the sequencers have no published times
            return []
        hertz = hardware.hertz(instruction.engine)
        cycles = _cycles(instruction, hardware)
        return [(instruction.engine, cycles / hertz, FIXED_CYCLES / hertz)]
    start_s = HARDWARE_DGE_S if transfer.dge == "hwdge" else DMA_START_S
    times = [("dma", _transfer_s(instruction, transfer, hardware), start_s)]
    if transfer.dge == "swdge":
        cycles = transfer.descriptors * CYCLES_PER_SOFTWARE_DESCRIPTOR
        times.append(("gpsimd", cycles / hardware.gpsimd_hz, FIXED_CYCLES / hardware.gpsimd_hz))
    return times


def _transfer_s(instruction: Instruction, transfer: Transfer, hardware: Hardware) -> float:
    if not transfer.bytes:
        return 0.0
    partitions = min(transfer.live_partitions, NUM_PARTITIONS)
    busy = math.ceil(partitions / PARTITIONS_PER_DMA_ENGINE) / NUM_DMA_ENGINES
    efficiency = transfer.run_bytes / (transfer.run_bytes + HALF_SPEED_RUN_BYTES)
    in_hbm = any("hbm" in operand.buffer for operand in instruction.operands)
    if transfer.transpose:
        efficiency *= TRANSPOSE_FROM_HBM if in_hbm else TRANSPOSE_ON_CHIP
    rate = hardware.dma_bytes_per_s * busy * efficiency
    return transfer.bytes / (min(rate, hardware.hbm_bytes_per_s) if in_hbm else rate)


def _cycles(instruction: Instruction, hardware: Hardware) -> float:
    columns = instruction.elements
    if instruction.engine == "tensor":
        return _matmul_cycles(instruction)
    if instruction.engine == "scalar":
        return max(columns, MIN_INTERVAL_CYCLES)
    if instruction.engine == "vector":
        sources = [op for op in instruction.operands[1:] if math.prod(op.shape[1:]) == columns]
        speed = 2 if hardware.has_fast_copy and _is_small_sbuf(instruction) else 1
        return columns * max(len(sources), 1) / speed
    return columns


def _matmul_cycles(instruction: Instruction) -> float:
    passes = FP32_MATMUL_PASSES if _is_fp32(instruction) else 1
    stationary = next((op.shape for op in instruction.operands if op.role == "stationary"), ())
    load = math.prod(stationary[1:]) / LOAD_STATIONARY_SPEEDUP if stationary else 0.0
    return passes * (max(instruction.elements, MIN_INTERVAL_CYCLES) + load)


def _is_fp32(instruction: Instruction) -> bool:
    return any(operand.dtype == "float32" for operand in instruction.operands[1:])


def _is_small_sbuf(instruction: Instruction) -> bool:
    sixteen = {"bfloat16", "float16"}
    return all(op.buffer == "sbuf" and op.dtype in sixteen for op in instruction.operands)
