"""Numbers as people read them: three digits, a unit that fits, the same unit down a column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
BYTES = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"), (1.0, "B"))
MIN_IN_LARGE_UNIT = 2.0
"""Days, hours and minutes are counted from two on: 90 s reads better than 1.5 min."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A unit and how many decimals its numbers have.

    >>> scale = Scale.of_times([0.25, 3.0, 48.5])
    >>> [scale.number(value) for value in (0.25, 48.5)], scale.unit
    (['0.2', '48.5'], 's')
    """

    factor: float
    unit: str
    num_decimals: int = 0

    @classmethod
    def of_times(cls, values: Sequence[float]) -> Scale:
        """Return what suits the largest of some seconds."""
        top = max(map(abs, values), default=0.0)
        factor, name = next(
            (one for one in TIMES if top >= one[0] * (MIN_IN_LARGE_UNIT if one[0] > 1 else 1)),
            TIMES[-1] if top else (1.0, "s"),
        )
        return cls(factor, name, _num_decimals(top / factor))

    @classmethod
    def of_bytes(cls, values: Sequence[float]) -> Scale:
        """Return what suits the largest of some sizes."""
        top = max(map(abs, values), default=0.0)
        factor, name = next((one for one in BYTES if top >= one[0]), BYTES[-1])
        return cls(factor, name, _num_decimals(top / factor) if factor > 1 else 0)

    def number(self, value: float) -> str:
        """Return a value without its unit."""
        return f"{value / self.factor:,.{self.num_decimals}f}"

    def text(self, value: float) -> str:
        """Return a value with its unit."""
        return f"{self.number(value)} {self.unit}"


def time_text(seconds: float) -> str:
    """Return seconds in the unit that suits them.

    >>> time_text(0.0123), time_text(90), time_text(5400)
    ('12.3 ms', '90 s', '90 min')
    """
    return _trimmed(Scale.of_times([seconds]), seconds)


def bytes_text(num_bytes: float) -> str:
    """Return a size in the unit that suits it.

    >>> bytes_text(1536), bytes_text(3 * 2**30)
    ('1.5 KiB', '3 GiB')
    """
    return _trimmed(Scale.of_bytes([num_bytes]), num_bytes)


def percent_text(share: float | None) -> str:
    """Return a share of 1; one that is not nothing never reads as 0.

    >>> percent_text(0.0312), percent_text(0.0004), percent_text(1.724), percent_text(None)
    ('3.1 %', '< 0.1 %', '172 %', '-')
    """
    if share is None:
        return "-"
    value = 100 * share
    if 0 < value < 0.05:
        return "< 0.1 %"
    text = f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}"
    return f"{'0.0' if text == '-0.0' else text} %"


def count_text(value: float) -> str:
    """Return a count.

    >>> count_text(19366)
    '19,366'
    """
    return f"{value:,.0f}"


def graphs_text(num: int) -> str:
    """Return a number of graphs.

    >>> graphs_text(1), graphs_text(12)
    ('1 graph', '12 graphs')
    """
    return f"{num} graph{'' if num == 1 else 's'}"


def _num_decimals(value: float) -> int:
    """Return how many decimals leave three digits, of a value that is not below 1."""
    if value < 1:
        return 2
    return max(0, 2 - floor(log10(value * 1.0005)))


def _trimmed(scale: Scale, value: float) -> str:
    number = scale.number(value)
    if "." in number:
        number = number.rstrip("0").rstrip(".")
    return f"{number} {scale.unit}"
