"""Rooflines: the constants of the study behind the planner, and what holds on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from noria.bucketing.costs.devices import SHEETS, device_sheet, read_sheet
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.roofline import Roofline

PLAIN = read_sheet({"bytes_s": 1e9, "flop_s": {"float32": 1e10}, "launch_s": 0.25})


@pytest.fixture
def study(llama: ModelShape) -> Roofline:
    """Llama 3 8B on a chip of 667 TFLOP/s at half, 2.9 TB/s at 80 %; all weights are read."""
    return Roofline.of(replace(llama, reads_embedding=True), device_sheet("trn2"), "bfloat16")


def test_the_ridge_of_llama_3_8b_is_at_165_tokens(study: Roofline) -> None:
    assert study.ridge_rows == pytest.approx(165, abs=0.5)

    seconds = study.prefill_s([1, 150, 165, 200]) - study.prefill_s(0)
    attention = study.model.attention_flop([1, 150, 165, 200], 0) / study.flop_s

    assert (seconds - attention)[:2] == pytest.approx([0, 0], abs=1e-9)
    assert (seconds - attention)[3] == pytest.approx(
        study.model.num_row_params * 2 * (200 - study.ridge_rows) / study.flop_s
    )


def test_without_the_embedding_the_ridge_is_where_the_head_puts_it(llama: ModelShape) -> None:
    costs = Roofline.of(llama, device_sheet("trn2"), "bfloat16")

    assert costs.ridge_rows == pytest.approx(154.5, abs=0.5)


def test_attention_equals_products_at_53_thousand_tokens(study: Roofline) -> None:
    n = 53_248

    attention = study.model.attention_flop(n, 0) / study.flop_s
    linear = study.model.linear_flop(n, 0) / study.flop_s

    assert attention == pytest.approx(linear, rel=1e-9)
    assert study.prefill_s(n) == pytest.approx(0.5e-3 + attention + linear, rel=1e-4)


def test_decode_reads_weights_and_contexts(study: Roofline) -> None:
    weights, context = 16.06e9 / 2.32e12, 64 * 16_384 * 131_072 / 2.32e12

    assert study.decode_s(64, 16_384) == pytest.approx(0.5e-3 + weights + context, rel=1e-3)
    assert study.decode_s(1, 1) == pytest.approx(0.5e-3 + weights, rel=1e-3)


def test_a_long_prefix_of_few_rows_is_bound_by_its_bytes(study: Roofline) -> None:
    added = study.prefill_s(1, 100_000) - study.prefill_s(1, 0)
    added_to_many = study.prefill_s(128, 100_000) - study.prefill_s(128, 0)

    assert added == pytest.approx(100_000 * 131_072 / 2.32e12, rel=1e-6)
    assert added_to_many == pytest.approx(4 * 32 * 4096 * 128 * 100_000 / 333.5e12, rel=1e-6)


def test_units_are_seconds(llama: ModelShape) -> None:
    costs = Roofline.of(replace(llama, weight_bytes=4), PLAIN, "float32", num_logits_rows=3)
    body, head = llama.num_row_params, llama.num_head_params

    flop = 2 * (body * 1000 + head * 3) + 2 * 32 * 4096 * 1000**2

    assert costs.prefill_s(1000) == pytest.approx(0.25 + flop / 1e10)
    assert costs.decode_s(2, 0) == pytest.approx(0.25 + 4 * (body + head) / 1e9)


def test_logits_cost_their_rows(study: Roofline) -> None:
    one, many = study.prefill_s(512), replace(study, num_logits_rows=9).prefill_s(512)

    assert many - one == pytest.approx(8 * 2 * study.model.num_head_params / study.flop_s)


def test_shapes_are_broadcast(study: Roofline) -> None:
    seconds = study.prefill_s(np.array([128, 256])[:, None], [0, 100, 1000])

    assert seconds.shape == (2, 3)
    assert seconds[1, 2] == study.prefill_s(256, 1000)
    assert study.decode_s([1, 2, 4], 512).shape == (3,)


@pytest.mark.parametrize("name", SHEETS)
@pytest.mark.parametrize("kind", ["dense", "windows", "experts"])
def test_more_rows_and_more_context_never_cost_less(
    name: str, kind: str, llama: ModelShape
) -> None:
    experts = {
        "num_expert_layers": 30,
        "num_experts": 64,
        "num_experts_per_row": 6,
        "expert_intermediate_size": 1408,
    }
    changes = {"dense": {}, "windows": {"windows": (128,) * 20}, "experts": experts}[kind]
    costs = Roofline.of(replace(llama, **changes), device_sheet(name), "bfloat16")  # type: ignore[arg-type]
    rows, context = np.arange(1, 3000, 13)[:, None], np.arange(0, 9000, 50)

    for seconds in (costs.prefill_s(rows, context), costs.decode_s(rows, context)):
        assert (np.diff(seconds, axis=0) >= 0).all()
        assert (np.diff(seconds, axis=1) >= 0).all()
        assert (seconds > 0).all()


def test_a_roofline_says_that_nothing_was_measured(study: Roofline) -> None:
    assert (study.source, study.error_share) == ("roofline", None)
