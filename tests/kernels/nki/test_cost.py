"""Times of synthetic instructions, against the vendor's published numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noria.kernels.nki.simulator.cost import ENGINES, Cost, EngineTime, Traffic, estimate, traffic
from noria.kernels.nki.simulator.trace import Instruction, Operand, Transfer

KIB = 1024


def operand(role: str, shape: tuple[int, ...], dtype: str, buffer: str) -> Operand:
    return Operand(role=role, tensor=role, shape=shape, dtype=dtype, buffer=buffer)


def dma(transfer: Transfer, source: str = "shared_hbm") -> Instruction:
    sides = (
        operand("dst", (128, 1), "bfloat16", "sbuf"),
        operand("src", (128, 1), "bfloat16", source),
    )
    return Instruction("dma", "dma_copy", "", "k.py:1", sides, 128, 1, transfer)


def compute(engine: str, dtype: str, *shapes: tuple[int, ...]) -> Instruction:
    roles = ("dst", "stationary", "moving") if engine == "tensor" else ("dst", "data1", "data2")
    operands = tuple(
        operand(role, shape, dtype, "sbuf") for role, shape in zip(roles, shapes, strict=False)
    )
    return Instruction(engine, "op", "", "k.py:1", operands, shapes[0][0], shapes[0][1])


def time_of(engine: str, *instructions: Instruction, target: str = "trn2") -> EngineTime:
    return estimate(instructions, target).engines[ENGINES.index(engine)]


def full(run_bytes: int) -> Transfer:
    return Transfer(128 * run_bytes, 0, 128, run_bytes, 128, "unknown")


def test_one_dma_engine_takes_what_the_vendor_measured() -> None:
    # 4 partitions of 8 KiB: one of 16 engines, 1416 ns in the vendor's profile.
    measured = Transfer(32 * KIB, 0, 4, 8 * KIB, 4, "unknown")

    assert time_of("dma", dma(measured)).work_s == pytest.approx(1416e-9, rel=0.1)


def test_small_pieces_waste_most_of_the_bandwidth_and_large_ones_little() -> None:
    peak = 362e9  # a core's share of the memory bandwidth, below its DMA engines' 368

    def share(run_bytes: int) -> float:
        return 128 * run_bytes / time_of("dma", dma(full(run_bytes))).work_s / peak

    assert share(128) < 0.25
    assert 0.75 < share(2 * KIB) < 0.9
    assert 0.88 < share(4 * KIB) < 1
    assert share(64 * KIB) == 1


def test_few_live_partitions_leave_dma_engines_idle() -> None:
    all_live = Transfer(64 * KIB, 0, 128, 512, 128, "unknown")

    times = [
        time_of("dma", dma(replace(all_live, live_partitions=live))).work_s for live in (128, 16, 8)
    ]

    assert times[1] == pytest.approx(8 * times[0])
    assert times[2] == pytest.approx(16 * times[0])


def test_skipped_bytes_take_no_time_but_the_start() -> None:
    skipped = Transfer(0, 64 * KIB, 0, 0, 0, "swdge", "src")

    time = time_of("dma", dma(skipped))

    assert time.work_s == 0
    assert time.fixed_s == pytest.approx(1.3e-6)


def test_hardware_descriptors_start_faster_and_software_ones_cost_gpsimd_time() -> None:
    hardware = replace(full(KIB), dge="hwdge")
    software = replace(full(KIB), dge="swdge")

    assert time_of("dma", dma(hardware)).fixed_s == pytest.approx(0.6e-6)
    assert time_of("gpsimd", dma(hardware)).total_s == 0
    assert time_of("gpsimd", dma(software)).work_s == pytest.approx(128 / 1.2e9)
    assert time_of("gpsimd", dma(software)).num_instructions == 0


def test_transposes_are_slower_more_so_within_sbuf() -> None:
    plain = full(KIB)
    turned = replace(plain, transpose=True)

    copy_s = time_of("dma", dma(plain)).work_s

    assert time_of("dma", dma(turned)).work_s == pytest.approx(copy_s / 0.9)
    assert time_of("dma", dma(turned, "sbuf")).work_s == pytest.approx(copy_s / 0.5)


def test_matmul_counts_moving_columns_the_load_and_four_passes_in_fp32() -> None:
    shapes = ((128, 512), (128, 128), (128, 512))

    bf16 = time_of("tensor", compute("tensor", "bfloat16", *shapes))
    fp32 = time_of("tensor", compute("tensor", "float32", *shapes))
    narrow = time_of("tensor", compute("tensor", "bfloat16", (4, 1), (128, 4), (128, 1)))

    assert bf16.work_s == pytest.approx((512 + 32) / 2.4e9)
    assert fp32.work_s == pytest.approx(4 * bf16.work_s)
    assert narrow.work_s == pytest.approx((64 + 1) / 2.4e9)


def test_vector_counts_its_tensors_and_is_faster_on_short_types() -> None:
    two = ((128, 512), (128, 512), (128, 512))

    def cycles(dtype: str, num_shapes: int, target: str) -> float:
        instruction = compute("vector", dtype, *two[:num_shapes])
        hertz = {"trn1": 1.12e9, "trn2": 0.96e9}[target]
        return time_of("vector", instruction, target=target).work_s * hertz

    assert cycles("float32", 2, "trn2") == pytest.approx(512)
    assert cycles("float32", 3, "trn2") == pytest.approx(1024)
    assert cycles("bfloat16", 2, "trn2") == pytest.approx(256)
    assert cycles("bfloat16", 2, "trn1") == pytest.approx(512)


def test_small_instructions_cost_their_minimum() -> None:
    scalar = time_of("scalar", compute("scalar", "float32", (128, 1), (128, 1)))

    assert scalar == EngineTime("scalar", 1, pytest.approx(64 / 1.2e9), pytest.approx(80 / 1.2e9))


def test_registers_take_no_time() -> None:
    register = compute("sync", "int32", (1, 1))

    assert estimate([register], "trn2").most_s == 0


def test_engines_run_in_parallel_at_best_and_one_by_one_at_worst() -> None:
    cost = Cost((EngineTime("dma", 1, 3.0, 1.0), EngineTime("tensor", 2, 2.0, 0.5)))

    assert cost.least_s == 3.0
    assert cost.most_s == 6.5


def test_traffic_is_summed_for_the_named_tensors() -> None:
    moved = dma(Transfer(100, 28, 4, 25, 4, "swdge", "src"))
    other = replace(moved, operands=(operand("q", (1, 1), "bfloat16", "sbuf"),))

    assert traffic([moved, other], ["src"]) == Traffic(100, 28, 4)
    assert traffic([moved, other]) == Traffic(200, 56, 8)


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="target 'trn9' is unknown"):
        estimate([], "trn9")
