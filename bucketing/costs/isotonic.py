"""Noise taken out of what must rise: isotonic regression, and lines between its points."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .cost import Floats


def isotonic(values: ArrayLike, weights: ArrayLike | None = None) -> Floats:
    """Return the non-decreasing sequence of the least weighted squared distance.

    Neighbours that fall are pooled into their mean, again and again (pool adjacent violators).

    >>> isotonic([1, 3, 2, 4]).tolist()
    [1.0, 2.5, 2.5, 4.0]
    """
    given = np.asarray(values, dtype=np.float64)
    counted = np.ones_like(given) if weights is None else np.asarray(weights, dtype=np.float64)
    pools: list[tuple[float, float, int]] = []
    for value, weight in zip(given.tolist(), counted.tolist(), strict=True):
        mean, total, length = value, weight, 1
        while pools and pools[-1][0] > mean:
            other, other_total, other_length = pools.pop()
            mean = (mean * total + other * other_total) / (total + other_total)
            total += other_total
            length += other_length
        pools.append((mean, total, length))
    return np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])


class RisingCurve:
    """Lines between points that never fall.

    Below the first size it is flat: a smaller graph is not taken to be faster than any that was
    measured. Beyond the last it goes on as steeply as from the last lower point to it; where all
    points are of one height, in proportion to size.
    """

    def __init__(
        self, sizes: ArrayLike, values: ArrayLike, weights: ArrayLike | None = None
    ) -> None:
        """Take the noise out of ``values [n]`` at ascending, positive ``sizes [n]``."""
        self.sizes = np.asarray(sizes, dtype=np.float64)
        self.values = isotonic(values, weights)
        size, value = self.sizes[-1], self.values[-1]
        lower = np.flatnonzero(self.values < value)
        if len(lower):
            size, value = size - self.sizes[lower[-1]], value - self.values[lower[-1]]
        self._slope = float(value / size)

    def __call__(self, sizes: ArrayLike) -> Floats:
        """Return the curve's value at each size."""
        at = np.asarray(sizes, dtype=np.float64)
        beyond = np.maximum(at - self.sizes[-1], 0) * self._slope
        seconds: Floats = np.interp(at, self.sizes, self.values) + beyond
        return seconds
