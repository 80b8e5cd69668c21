"""Least squares without negative coefficients: optimality, and all sets of columns tried."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from noria.bucketing.costs.nnls import nonnegative_least_squares as solve


@pytest.mark.parametrize("seed", range(60))
def test_the_solution_is_optimal(seed: int) -> None:
    """No gradient at 0 points inside, none above 0 is left: with convexity, that is enough."""
    rng = np.random.default_rng(seed)
    num_rows, num = int(rng.integers(1, 12)), int(rng.integers(1, 7))
    matrix = rng.normal(size=(num_rows, num)) * 10.0 ** rng.integers(-9, 9, size=num)
    values = rng.normal(size=num_rows)

    x = solve(matrix, values)

    gradient = matrix.T @ (values - matrix @ x) / np.linalg.norm(matrix, axis=0)
    assert (x >= 0).all()
    assert (gradient <= 1e-8).all()
    assert gradient[x > 0] == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("seed", range(60))
def test_columns_that_are_much_alike_leave_in_turn(seed: int) -> None:
    rng = np.random.default_rng(1000 + seed)
    matrix = np.cumsum(rng.random((12, 8)), axis=1) + 3 * rng.random((12, 1))
    values = rng.normal(size=12) + matrix @ rng.normal(size=8)

    x = solve(matrix, values)

    assert np.linalg.norm(matrix @ x - values) == pytest.approx(brute_force(matrix, values))


@pytest.mark.parametrize("seed", range(30))
def test_no_set_of_columns_does_better(seed: int) -> None:
    rng = np.random.default_rng(100 + seed)
    matrix, values = rng.normal(size=(6, 4)), rng.normal(size=6)

    x = solve(matrix, values)

    assert np.linalg.norm(matrix @ x - values) == pytest.approx(brute_force(matrix, values))


def brute_force(matrix: np.ndarray, values: np.ndarray) -> float:
    best = float(np.linalg.norm(values))
    for size in range(1, matrix.shape[1] + 1):
        for chosen in combinations(range(matrix.shape[1]), size):
            x = np.linalg.lstsq(matrix[:, chosen], values, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, float(np.linalg.norm(matrix[:, chosen] @ x - values)))
    return best


def test_coefficients_that_were_planted_are_found_whatever_their_scale() -> None:
    rng = np.random.default_rng(7)
    planted = np.array([3e-12, 0, 5.0, 2e9])
    matrix = rng.random((9, 4)) / np.array([1e-12, 1, 1, 1e9])

    assert solve(matrix, matrix @ planted) == pytest.approx(planted, rel=1e-6, abs=1e-9)


def test_columns_that_are_zero_or_equal_do_no_harm() -> None:
    matrix = np.array([[1.0, 1.0, 0.0], [2.0, 2.0, 0.0], [3.0, 3.0, 0.0]])

    x = solve(matrix, np.array([2.0, 4.0, 6.0]))

    assert x[:2].sum() == pytest.approx(2)
    assert x[2] == 0
    assert solve(np.zeros((2, 2)), np.ones(2)).tolist() == [0, 0]
    assert solve(np.ones((3, 2)), -np.ones(3)).tolist() == [0, 0]
