"""Costs from measured steps: models that are planted, noise, what lies between and beyond."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from noria.bucketing.costs.measured import MeasuredCosts
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.table import CostTable

Make = Callable[..., CostTable]
ROWS, PREFIXES = np.arange(1, 4000, 7)[:, None], np.arange(0, 3000, 61)


def prefill(n: int, p: int) -> float:
    return 0.01 + 1e-4 * n + 3e-8 * n * p + 2e-6 * p


def decode(s: int, c: int) -> float:
    return 0.02 + 1e-3 * s + 4e-7 * s * c


def test_measured_steps_are_returned_as_they_were_measured(make_table: Make) -> None:
    table = make_table(prefill, decode)
    costs = MeasuredCosts(table)

    found = [costs.prefill_s(s.num_rows, s.context).item() for s in table.prefill]
    found += [costs.decode_s(s.num_rows, s.context).item() for s in table.decode]

    assert found == pytest.approx([s.seconds for s in (*table.prefill, *table.decode)])
    assert costs.source == "measured"
    assert costs.error_share == pytest.approx(0, abs=1e-9)


def test_a_planted_rule_is_found_between_the_measured_shapes(make_table: Make) -> None:
    costs = MeasuredCosts(make_table(prefill, decode))

    for n, p in [(40, 100), (200, 1500), (700, 0), (1024, 1024), (1000, 5000)]:
        assert costs.prefill_s(n, p) == pytest.approx(prefill(n, p))
    for s, c in [(1, 1), (3, 1000), (6, 2048), (8, 10_000)]:
        assert costs.decode_s(s, c) == pytest.approx(decode(s, c))


def test_beyond_the_largest_size_the_last_slope_goes_on(make_table: Make) -> None:
    costs = MeasuredCosts(make_table(prefill, decode))

    assert costs.prefill_s(4096, 512) == pytest.approx(prefill(4096, 512))
    assert costs.decode_s(64, 512) == pytest.approx(decode(64, 512))


def test_below_the_smallest_size_nothing_is_saved(make_table: Make) -> None:
    costs = MeasuredCosts(make_table(prefill, decode))

    assert costs.prefill_s(1) == costs.prefill_s(16) == pytest.approx(prefill(16, 0))


def test_windows_bound_what_context_costs(make_table: Make, llama: ModelShape) -> None:
    model = replace(llama, windows=(512,) * 32)
    table = make_table(prefill, lambda s, c: 0.02 + 1e-6 * s * min(c, 512), model=model)

    costs = MeasuredCosts(table)

    assert costs.decode_s(4, 512) == pytest.approx(0.02 + 1e-6 * 4 * 512)
    assert costs.decode_s(4, 100_000) == costs.decode_s(4, 512)


@pytest.mark.parametrize("seed", range(20))
def test_noise_never_makes_more_rows_or_context_cheaper(seed: int, make_table: Make) -> None:
    noise = np.random.default_rng(seed).lognormal(0, 0.4, size=100)
    draws = iter(noise.tolist())

    costs = MeasuredCosts(
        make_table(
            lambda *shape: prefill(*shape) * next(draws), lambda *s: decode(*s) * next(draws)
        )
    )

    for seconds in (costs.prefill_s(ROWS, PREFIXES), costs.decode_s(ROWS, PREFIXES)):
        assert (np.diff(seconds, axis=0) >= 0).all()
        assert (np.diff(seconds, axis=1) >= 0).all()
        assert (seconds >= 0).all()
    assert costs.error_share is not None
    assert costs.error_share > 0.01


def test_one_disturbed_step_is_pooled_with_its_neighbours(make_table: Make) -> None:
    def disturbed(n: int, p: int) -> float:
        return 1.5 if (n, p) == (64, 0) else prefill(n, p)

    costs = MeasuredCosts(make_table(disturbed, decode))

    assert costs.prefill_s(64) <= costs.prefill_s(256)
    # By relative errors: the long step does not drag the short one up.
    assert costs.prefill_s(256) == pytest.approx(prefill(256, 0), rel=0.05)


def test_a_prefix_is_refused_where_none_was_measured(make_table: Make) -> None:
    costs = MeasuredCosts(make_table(prefill, decode, prefill_shapes=[(16, 0), (64, 0)]))

    assert costs.prefill_s([16, 64], 0) == pytest.approx([prefill(16, 0), prefill(64, 0)])
    with pytest.raises(ValueError, match="no step with a prefix was measured"):
        costs.prefill_s(64, [0, 1])


def test_a_size_that_was_measured_with_prefixes_only_is_missing_its_base(make_table: Make) -> None:
    table = make_table(prefill, decode, prefill_shapes=[(16, 0), (64, 8)])

    with pytest.raises(ValueError, match="64 rows lack a step without a prefix"):
        MeasuredCosts(table)


def test_decode_steps_of_one_context_are_refused(make_table: Make) -> None:
    with pytest.raises(ValueError, match=r"costs\.decode: all steps have one context"):
        MeasuredCosts(make_table(prefill, decode, decode_shapes=[(1, 128), (4, 128)]))


def test_one_size_of_each_phase_is_enough(make_table: Make) -> None:
    table = make_table(
        prefill, decode, prefill_shapes=[(64, 0)], decode_shapes=[(4, 128), (4, 512)]
    )

    costs = MeasuredCosts(table)

    assert costs.prefill_s([32, 64, 128]) == pytest.approx(
        [prefill(64, 0)] * 2 + [2 * prefill(64, 0)]
    )
    assert costs.decode_s(4, 512) == pytest.approx(decode(4, 512))


def test_what_was_measured_is_told_from_what_was_not(make_table: Make) -> None:
    costs = MeasuredCosts(make_table(prefill, decode))

    assert costs.is_measured("prefill", [15, 16, 1024, 1025]).tolist() == [False, True, True, False]
    assert costs.is_measured("prefill", 64, [1024, 1025]).tolist() == [True, False]
    assert costs.is_measured("decode", [8, 9], [2048, 2048]).tolist() == [True, False]
    assert costs.is_measured("decode", 1, 4096).item() is False
