"""Numbers of users: what is one, and what is only called one."""

from __future__ import annotations

import math


def finite_number(value: object) -> float | None:
    """Return a finite number as a float, None for whatever else: NaN, a truth value, a text."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
