"""Numbers: which of users are some, and how far computed ones are the same everywhere."""

from __future__ import annotations

import math

DIGITS = 9
"""Of numbers that were computed: fewer than sums may differ by on another machine."""


def rounded_number(value: float) -> float:
    """Return a computed number as plans and reports show it: the same on every machine.

    >>> rounded_number(1 / 3)
    0.333333333
    """
    return float(f"{value:.{DIGITS}g}")


def finite_number(value: object) -> float | None:
    """Return a finite number as a float, None for whatever else: NaN, a truth value, a text."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
