"""Least squares whose coefficients are not negative."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .cost import Floats

TOLERANCE = 1e-10
"""Of gradients, as a share of the largest at the start."""


def nonnegative_least_squares(matrix: Floats, values: Floats) -> Floats:
    """Return the x >= 0 that makes ``|matrix @ x - values|`` least.

    The active set method of Lawson and Hanson (Solving Least Squares Problems, 1974, chapter 23):
    the column that would help most joins, and those that the solution would make negative leave.

    Args:
        matrix: ``[m, n]``; columns of zeros get the coefficient 0.
        values: ``[m]``.
    """
    scales = np.linalg.norm(matrix, axis=0)
    scales[scales == 0] = 1.0
    columns = matrix / scales
    num = columns.shape[1]
    x, used = np.zeros(num), np.zeros(num, dtype=bool)
    gradient = columns.T @ values
    limit = TOLERANCE * max(float(np.abs(gradient).max(initial=0.0)), np.finfo(np.float64).tiny)
    for _ in range(10 * num):
        wanted = np.where(used, -np.inf, gradient)
        best = int(wanted.argmax())
        if wanted[best] <= limit:
            break
        used[best] = True
        x = _solve_used(columns, values, x, used)
        gradient = columns.T @ (values - columns @ x)
    solved: Floats = x / scales
    return solved


def _solve_used(columns: Floats, values: Floats, x: Floats, used: NDArray[np.bool_]) -> Floats:
    """Return the least squares over the used columns; those that reach 0 on the way leave."""
    while True:
        target = np.zeros_like(x)
        target[used] = np.linalg.lstsq(columns[:, used], values, rcond=None)[0]
        below = used & (target <= 0)
        if not below.any():
            return target
        steps = x[below] / (x[below] - target[below])
        x = x + steps.min() * (target - x)
        leaving = below & (x <= TOLERANCE * max(1.0, float(np.abs(x).max())))
        leaving[np.flatnonzero(below)[steps.argmin()]] = True
        used &= ~leaving
        x[~used] = 0.0
