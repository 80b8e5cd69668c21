"""Smoothing keeps the number of steps and reaches every shape."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing.planner.smoothing import smoothed_decode, smoothed_prefill
from noria.bucketing.sets.demand import DecodeDemand, PrefillDemand

AXES = st.sets(st.integers(1, 99), min_size=1, max_size=6).map(lambda s: np.array(sorted(s)))


@settings(deadline=None)
@given(AXES, AXES, st.sampled_from([0.0, 0.002, 0.5]))
def test_every_size_gets_a_share_and_no_step_is_lost(
    sizes: np.ndarray, axis: np.ndarray, share: float
) -> None:
    demand = PrefillDemand.of(sizes)

    smoothed = smoothed_prefill(demand, axis, share)

    assert smoothed.weights.sum() == pytest.approx(len(sizes))
    assert set(smoothed.sizes) == {*sizes, *axis}
    if share == 0:
        assert dict(zip(smoothed.sizes, smoothed.weights, strict=True)) == {
            size: float(size in sizes) for size in {*sizes, *axis}
        }


@settings(deadline=None)
@given(AXES, AXES)
def test_every_cell_of_a_grid_gets_a_share(rows: np.ndarray, columns: np.ndarray) -> None:
    demand = DecodeDemand.of([3], [5], [1000.0])

    smoothed = smoothed_decode(demand, rows, columns, 0.002)

    cells = {(row, column) for row in rows for column in columns}
    assert smoothed.weights.sum() == pytest.approx(1000)
    assert set(zip(smoothed.num_seqs, smoothed.context_lens, strict=True)) == {(3, 5), *cells}
    assert (smoothed.weights > 0).all()
