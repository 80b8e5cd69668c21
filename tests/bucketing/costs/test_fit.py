"""Fitted rooflines: planted devices are found again, and errors are what they are said to be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from noria.bucketing.costs.fit import INTENSITIES, FittedCosts
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.table import CostTable

Make = Callable[..., CostTable]
SIX = {
    "prefill_shapes": [(16, 0), (512, 0), (1024, 1024)],
    "decode_shapes": [(1, 256), (8, 256), (8, 2048)],
}


def planted(model: ModelShape, intensity: float = INTENSITIES[60]) -> FittedCosts:
    return FittedCosts(
        model=model,
        num_logits_rows=1,
        launch_s=2e-3,
        flop_s=1 / 200e12,
        intensity=intensity,
        attention_flop_s=1 / 90e12,
        kv_byte_s=1 / 1.5e12,
    )


def table_of(costs: FittedCosts, make_table: Make, **shapes: object) -> CostTable:
    return make_table(
        lambda n, p: costs.prefill_s(n, p).item(),
        lambda s, c: costs.decode_s(s, c).item(),
        model=costs.model,
        **shapes,
    )


@pytest.mark.parametrize("kind", ["dense", "experts", "windows"])
def test_a_planted_device_is_found_from_six_steps(
    kind: str, make_table: Make, llama: ModelShape
) -> None:
    experts = {
        "num_expert_layers": 32,
        "num_experts": 8,
        "num_experts_per_row": 2,
        "expert_intermediate_size": 4096,
    }
    changes = {"dense": {}, "experts": experts, "windows": {"windows": (300,) * 16}}[kind]
    device = planted(replace(llama, **changes))  # type: ignore[arg-type]

    found = FittedCosts.fit(table_of(device, make_table, **SIX))

    for name in ("launch_s", "flop_s", "attention_flop_s", "kv_byte_s"):
        assert getattr(found, name) == pytest.approx(getattr(device, name), rel=1e-6), name
    assert found.intensity == device.intensity
    assert found.error_share == pytest.approx(0, abs=1e-9)
    assert found.prefill_s(3000, 9000) == pytest.approx(device.prefill_s(3000, 9000))
    assert found.decode_s(100, 9000) == pytest.approx(device.decode_s(100, 9000))


def test_an_intensity_between_those_tried_is_nearly_met(
    make_table: Make, llama: ModelShape
) -> None:
    device = planted(llama, intensity=(INTENSITIES[60] + INTENSITIES[61]) / 2)

    found = FittedCosts.fit(table_of(device, make_table))

    assert found.error_share is not None
    assert found.error_share < 0.02
    assert found.decode_s(3, 700) == pytest.approx(device.decode_s(3, 700), rel=0.05)


def test_errors_are_distances_from_the_measured_seconds(
    make_table: Make, llama: ModelShape
) -> None:
    device, draws = planted(llama), iter(np.random.default_rng(1).lognormal(0, 0.1, 99).tolist())
    table = make_table(
        lambda n, p: device.prefill_s(n, p).item() * next(draws),
        lambda s, c: device.decode_s(s, c).item() * next(draws),
    )

    found = FittedCosts.fit(table)

    shares = [abs(found.prefill_s(t.num_rows, t.context) / t.seconds - 1) for t in table.prefill]
    shares += [abs(found.decode_s(t.num_rows, t.context) / t.seconds - 1) for t in table.decode]
    assert found.error_share == pytest.approx(np.mean(shares))


def test_a_step_left_out_is_foretold_by_the_others_alone(
    make_table: Make, llama: ModelShape
) -> None:
    table = table_of(planted(llama), make_table, **SIX)
    wrong = replace(table.decode[0], seconds=2 * table.decode[0].seconds)
    table = replace(table, decode=(wrong, *table.decode[1:]))

    errors = []
    for index in range(3):
        kept = FittedCosts.fit(replace(table, prefill=drop(table.prefill, index)))
        step = table.prefill[index]
        errors.append(abs(kept.prefill_s(step.num_rows, step.context) / step.seconds - 1))
    for index in range(3):
        kept = FittedCosts.fit(replace(table, decode=drop(table.decode, index)))
        step = table.decode[index]
        errors.append(abs(kept.decode_s(step.num_rows, step.context) / step.seconds - 1))

    found = FittedCosts.fit(table)
    assert found.left_out_error_share == pytest.approx(np.mean(errors))
    assert found.left_out_error_share != pytest.approx(found.error_share)


def drop(steps: tuple, index: int) -> tuple:
    return steps[:index] + steps[index + 1 :]


@pytest.mark.parametrize("seed", range(10))
def test_more_rows_and_more_context_never_cost_less(
    seed: int, make_table: Make, llama: ModelShape
) -> None:
    draws = iter(np.random.default_rng(seed).lognormal(0, 1, 99).tolist())
    costs = FittedCosts.fit(make_table(lambda n, p: next(draws), lambda s, c: next(draws)))
    rows, context = np.arange(1, 3000, 13)[:, None], np.arange(0, 9000, 50)

    for seconds in (costs.prefill_s(rows, context), costs.decode_s(rows, context)):
        assert (np.diff(seconds, axis=0) >= 0).all()
        assert (np.diff(seconds, axis=1) >= 0).all()


def test_too_few_steps_are_refused(make_table: Make, llama: ModelShape) -> None:
    shapes = {"prefill_shapes": [(16, 0)], "decode_shapes": [(1, 256), (8, 256)]}

    with pytest.raises(ValueError, match="3 steps were measured; a fit needs 4"):
        FittedCosts.fit(table_of(planted(llama), make_table, **shapes))


def test_four_steps_are_fitted_and_none_is_left_out(make_table: Make, llama: ModelShape) -> None:
    shapes = {"prefill_shapes": [(64, 0), (512, 512)], "decode_shapes": [(1, 256), (8, 2048)]}

    found = FittedCosts.fit(table_of(planted(llama), make_table, **shapes))

    assert found.left_out_error_share is None
    assert found.source == "fitted"
