"""Device sheets: their numbers, and those that are given."""

from __future__ import annotations

from typing import Any

import pytest

from noria.bucketing import DecodeBucket, PrefillBucket
from noria.bucketing.costs.devices import (
    CPU_THREADS,
    SHEETS,
    device_sheet,
    read_sheet,
    sheet_mapping,
)
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.roofline import Roofline

GIVEN: dict[str, Any] = {"bytes_s": 20e9, "flop_s": {"float32": 1e11}, "launch_s": 1e-4}


def test_trn2_reads_and_multiplies_as_the_study_assumes() -> None:
    sheet = device_sheet("trn2")

    assert sheet.effective_flop_s("bfloat16") == pytest.approx(333e12, rel=0.002)
    assert sheet.effective_bytes_s == pytest.approx(2.3e12, rel=0.01)
    assert sheet.launch_s == 0.5e-3


@pytest.mark.parametrize(
    ("name", "peak"), [("trn1", 544e9), ("trn2", 2.9e12), ("trn3", 4.224e12), ("h200", 4.8e12)]
)
def test_memory_is_no_faster_than_what_moves_its_bytes(name: str, peak: float) -> None:
    assert device_sheet(name).bytes_s == peak


@pytest.mark.parametrize("name", [name for name in SHEETS if name != "cpu"])
def test_every_sheet_knows_the_dtypes_of_a_configuration_and_fewer_bits_are_no_slower(
    name: str,
) -> None:
    sheet = device_sheet(name)

    rates = [sheet.effective_flop_s(d) for d in ("float32", "bfloat16", "float8_e4m3fn")]

    assert sheet.name == name
    assert rates == sorted(rates)


def test_inf2_is_a_trn1_to_a_planner() -> None:
    assert device_sheet("inf2") is device_sheet("trn1")


@pytest.mark.parametrize("name", SHEETS)
def test_fees_are_positive_and_a_larger_graph_costs_no_less(name: str) -> None:
    fees, small, large = SHEETS[name].fees, DecodeBucket(1, 128), PrefillBucket(8192, 8192)

    assert 0 < fees.compile_s(small) <= fees.compile_s(large)
    assert 0 < fees.num_bytes(small) <= fees.num_bytes(large)


def test_neuron_graphs_take_minutes_and_those_of_a_cpu_a_fraction_of_a_second() -> None:
    bucket = PrefillBucket(2048, 8192)

    assert 60 < device_sheet("trn2").fees.compile_s(bucket) < 3600
    assert read_sheet(GIVEN).fees.compile_s(bucket) == 0.3
    assert read_sheet(GIVEN).fees.num_bytes(bucket) == 150_000


def test_a_cpu_has_a_sheet_for_any_number_of_threads() -> None:
    one, eight = device_sheet("cpu", num_threads=1), device_sheet("cpu", num_threads=8)

    assert (one.name, eight.name) == ("cpu, 1 thread", "cpu, 8 threads")
    assert eight.bytes_s == 8 * one.bytes_s
    assert eight.flop_s == {dtype: 8 * rate for dtype, rate in one.flop_s.items()}
    assert (eight.launch_s, eight.fees) == (one.launch_s, one.fees)


def test_a_cpu_has_as_many_threads_as_nobody_says_on_every_machine() -> None:
    assert device_sheet("cpu") == device_sheet("cpu", num_threads=CPU_THREADS)


def test_threads_are_those_of_a_cpu_only() -> None:
    assert device_sheet("trn2", num_threads=3) == device_sheet("trn2")


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_a_cpu_computes_in_every_dtype_that_a_configuration_may_name(dtype: str) -> None:
    assert device_sheet("cpu").effective_flop_s(dtype) > 0


def test_a_prefill_of_128_tokens_takes_what_docs_benchmarks_measured() -> None:
    smollm2 = ModelShape(
        num_layers=30,
        hidden_size=576,
        intermediate_size=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab_size=49152,
    )

    costs = Roofline.of(smollm2, device_sheet("cpu"), "bfloat16", num_logits_rows=8)

    assert costs.prefill_s(128) == pytest.approx(0.146, rel=0.1)
    assert costs.decode_s(32, 64) == pytest.approx(0.048, rel=0.1)


def test_an_unknown_device_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(
        ValueError, match=r"'tpu' is not known \(known: cpu, trn1, trn2, trn3, h200\)"
    ):
        device_sheet("tpu")


def test_a_dtype_without_a_rate_is_an_error_that_lists_the_others() -> None:
    with pytest.raises(ValueError, match=r"no rate for bfloat16 \(it has float32\)"):
        read_sheet(GIVEN).effective_flop_s("bfloat16")


def test_a_sheet_survives_being_written_and_read() -> None:
    sheet = device_sheet("trn3")

    assert read_sheet(sheet_mapping(sheet)) == sheet


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"bytes_s": 0}, "device.bytes_s: 0 is not"),
        ({"bytes_s": float("nan")}, "device.bytes_s: nan is not"),
        ({"bytes_s": True}, "device.bytes_s: True is not"),
        ({"flop_s": {"float32": -1}}, "device.flop_s.float32: -1 is not"),
        ({"flop_s": {}}, "device.flop_s: names no dtype"),
        ({"flop_s": 1e12}, "device.flop_s: must name"),
        ({"launch_s": -1e-3}, "device.launch_s: -0.001 is not"),
        ({"launch_s": float("inf")}, "device.launch_s: inf is not"),
        ({"bytes_share": 1.5}, "device.bytes_share: 1.5 is not"),
        ({"flop_share": 0}, "device.flop_share: 0 is not"),
        ({"fees": {}}, "device.fees: must hold"),
        ({"bandwidth": 1}, "device.bandwidth: is not known"),
    ],
)
def test_a_given_sheet_that_means_nothing_is_one_clear_error(
    change: dict[str, Any], error: str
) -> None:
    with pytest.raises(ValueError, match=error):
        read_sheet(GIVEN | change)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(ValueError, match=r"device\.launch_s: is missing"):
        read_sheet({key: value for key, value in GIVEN.items() if key != "launch_s"})
