"""Kinds of values in a trace: how one is read from its text, and what may stand there.

This is the careful reading, which says what is wrong; ``fields`` reads whole columns at once and
takes nothing that is refused here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

MAX_LEN = 2**31 - 1
"""Tokens of a request: far beyond any, and sums of them stay exact."""
MAX_DECIMAL = 1e15
NS = 10**9
YEARS = range(1970, 2262)
"""Years whose nanoseconds since 1970 fit 63 bits."""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?", re.ASCII)
_INSTANT = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[-+]\d\d:?\d\d)?", re.ASCII
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Layout = Literal["whole", "decimal", "instant", "word"]


@dataclass(frozen=True, slots=True)
class Kind:
    """What a column holds.

    Attributes:
        layout: how a value is written.
        fits: what may stand there, for errors.
        low: least value of a whole number or a decimal.
        high: largest one.
    """

    layout: Layout
    fits: str
    low: float = 0
    high: float = MAX_DECIMAL

    def read(self, text: str) -> int | float | str:
        """Return the value that a text spells; instants in nanoseconds since 1970.

        Raises:
            ValueError: it spells no such value.
        """
        value = _READERS[self.layout](text)
        if not isinstance(value, str) and not self.low <= value <= self.high:
            raise ValueError(text)
        return value


def number(text: str) -> float:
    """Return the value of a decimal number.

    Raises:
        ValueError: it is none, or not finite.
    """
    if not _NUMBER.fullmatch(text) or not math.isfinite(value := float(text)):
        raise ValueError(text)
    return value


def whole_number(text: str) -> int:
    """Return an integer, which may be written as the decimal that it equals: ``374.0``.

    >>> whole_number("374.0")
    374

    Raises:
        ValueError: it is none.
    """
    value = number(text)
    if not value.is_integer():
        raise ValueError(text)
    return int(value)


def instant(text: str) -> int:
    """Return the nanoseconds from 1970 to an ISO 8601 time, UTC where it names no zone.

    >>> instant("1970-01-01 00:00:01.5"), instant("1970-01-01T01:00:00+01:00")
    (1500000000, 0)

    Raises:
        ValueError: it is no such time.
    """
    match = _INSTANT.fullmatch(text)
    if match is None:
        raise ValueError(text)
    day, time, fraction, zone = match.groups()
    moment = datetime.fromisoformat(f"{day}T{time}{zone or 'Z'}")
    if moment.year not in YEARS:
        raise ValueError(text)
    seconds = (moment - _EPOCH) // timedelta(seconds=1)
    return seconds * NS + int((fraction or "").ljust(9, "0"))


def _word(text: str) -> str:
    return text


_READERS: dict[Layout, Callable[[str], int | float | str]] = {
    "whole": whole_number,
    "decimal": number,
    "instant": instant,
    "word": _word,
}

TOKENS = Kind("whole", f"must be a whole number of tokens, from 1 to {MAX_LEN}", 1, MAX_LEN)
CACHED_TOKENS = Kind("whole", f"must be a whole number of tokens, from 0 to {MAX_LEN}", 0, MAX_LEN)
COUNT = Kind("decimal", "must be a number that is not negative")
SECONDS = Kind("decimal", "must be a number of seconds", -MAX_DECIMAL)
INSTANT = Kind("instant", "must be a time such as 2023-11-16 18:15:46.6805900", -math.inf, math.inf)
WORD = Kind("word", "must be a word")
