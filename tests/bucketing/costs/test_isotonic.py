"""Isotonic regression against all ways to pool, and the curve through its points."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.costs.isotonic import RisingCurve, isotonic

POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), min_size=1, max_size=7)


@given(POINTS)
def test_no_rising_sequence_is_nearer(points: list[tuple[int, int]]) -> None:
    values, weights = (np.array(column, dtype=float) for column in zip(*points, strict=True))

    found = isotonic(values, weights)

    assert (np.diff(found) >= 0).all()
    least = brute_force(values, weights)
    assert weights @ (found - values) ** 2 == pytest.approx(least, abs=1e-9)


def brute_force(values: np.ndarray, weights: np.ndarray) -> float:
    """Return the least distance over all cuts into pools whose means do not fall."""
    num, best = len(values), float("inf")
    for num_cuts in range(num):
        for cuts in combinations(range(1, num), num_cuts):
            pools = np.split(np.arange(num), cuts)
            means = [np.average(values[pool], weights=weights[pool]) for pool in pools]
            if all(a <= b + 1e-12 for a, b in pairwise(means)):
                pairs = zip(pools, means, strict=True)
                best = min(best, sum(weights[p] @ (values[p] - m) ** 2 for p, m in pairs))
    return best


def test_what_rises_stays() -> None:
    assert isotonic([1, 1, 2, 5]).tolist() == [1, 1, 2, 5]


def test_a_curve_goes_through_its_points_and_is_straight_between() -> None:
    curve = RisingCurve([10, 20, 40], [1, 2, 6])

    assert curve([10, 15, 20, 30, 40]).tolist() == [1, 1.5, 2, 4, 6]


def test_a_curve_is_flat_below_and_goes_on_as_it_ended_beyond() -> None:
    curve = RisingCurve([10, 20, 40], [1, 2, 6])

    assert curve([1, 10, 50, 80]).tolist() == [1, 1, 8, 14]


def test_a_flat_end_does_not_make_larger_graphs_free() -> None:
    assert RisingCurve([10, 20, 30], [1, 3, 2.9])(60) == pytest.approx(2.95 + 30 * 1.95 / 20)
    assert RisingCurve([10, 20], [4, 4])(40).item() == 8
    assert RisingCurve([10], [3])([5, 10, 20]).tolist() == [3, 3, 6]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=6))
def test_a_curve_never_falls(values: list[int]) -> None:
    sizes = np.arange(1, len(values) + 1) * 3

    assert (np.diff(RisingCurve(sizes, values)(np.arange(0, 60))) >= -1e-12).all()
