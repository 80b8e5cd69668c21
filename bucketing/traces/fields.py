"""Whole columns of numbers from the bytes of a CSV text, or None where one value is odd.

What is read here is what ``kinds`` reads one value at a time; whatever is written in an unusual
way (blanks, quotes, signs) or wrong is left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kinds import NS, YEARS, Kind, Layout
from .trace import Ints

Bytes = NDArray[np.uint8]
Bools = NDArray[np.bool_]
Column = NDArray[Any]

NEWLINE, RETURN, COMMA, QUOTE, DOT, ZERO, UTC = b'\n\r,".0Z'
MAX_DIGITS = 10
BLOCK_ROWS = 2**14
"""Rows whose numbers are in the processor's cache while their digits are added up."""
MAX_WIDTH = 32
DECIMAL = np.zeros(256, bool)
DECIMAL[list(b"0123456789+-.eE")] = True
DATE_LEN = len("2023-11-16 18:15:46")
SEPARATORS = ((4, b"-"), (7, b"-"), (10, b" T"), (13, b":"), (16, b":"))
ZONES = (b"Z", b"+00:00")


@dataclass(frozen=True, slots=True)
class Fields:
    """Where the values of one column stand: ``data[starts[i]:ends[i]]`` in line i."""

    data: Bytes
    starts: Ints
    ends: Ints

    @property
    def widths(self) -> Ints:
        """Bytes of each value."""
        return self.ends - self.starts


def split_fields(lines: bytes, num_columns: int) -> list[Fields] | None:
    """Find the columns of lines that all have ``num_columns`` of them, and no quotes."""
    data = np.frombuffer(lines, np.uint8)
    if (data == QUOTE).any():
        return None
    ends = np.append(np.flatnonzero(data == NEWLINE), len(data))
    starts = np.concatenate(([0], ends[:-1] + 1))
    commas = np.flatnonzero(data == COMMA)
    if len(commas) != len(ends) * (num_columns - 1):
        return None
    inner = commas.reshape(len(ends), num_columns - 1)
    if num_columns > 1 and not ((inner[:, 0] >= starts) & (inner[:, -1] < ends)).all():
        return None
    # An empty line has no byte before its end; what is read there is a line end, no return.
    ends = ends - (data[np.maximum(ends - 1, 0)] == RETURN)
    edges = [starts, *(inner.T + 1)]
    return [Fields(data, *pair) for pair in zip(edges, [*inner.T, ends], strict=True)]


def read_fields(fields: Fields, kind: Kind) -> Column | None:
    """Read a column; None if one of its values is odd."""
    blocks = []
    for start in range(0, len(fields.starts), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        block = Fields(fields.data, fields.starts[rows], fields.ends[rows])
        values = _READERS[kind.layout](block)
        if values is None or not _is_fit(values, kind):
            return None
        blocks.append(values)
    return np.concatenate(blocks)


def _is_fit(values: Column, kind: Kind) -> bool:
    if kind.layout in ("instant", "word"):
        return True
    return bool(((values >= kind.low) & (values <= kind.high)).all())


def _whole_numbers(fields: Fields) -> Column | None:
    widths = fields.widths
    if widths.min() < 1 or widths.max() > MAX_DIGITS:
        return None
    return _digits(fields, widths)


def _digits(fields: Fields, widths: Ints) -> Ints | None:
    """Return the numbers that the last ``widths`` bytes of each value spell."""
    total = np.zeros(len(widths), np.int64)
    for place in range(int(widths.max())):
        is_there = widths > place
        at = np.where(is_there, fields.ends - 1 - place, fields.ends - 1)
        digits = fields.data[at] - ZERO  # wraps around below the digits
        if (is_there & (digits > 9)).any():
            return None
        total += np.where(is_there, digits, 0) * np.int64(10**place)
    return total


def _words(fields: Fields) -> Column | None:
    """Return values as byte strings of numpy."""
    width = int(fields.widths.max())
    if not 0 < width <= MAX_WIDTH or fields.widths.min() < 1:
        return None
    characters = np.zeros((len(fields.starts), width), np.uint8)
    for place in range(width):
        is_there = fields.widths > place
        at = np.where(is_there, fields.starts + place, fields.starts)
        characters[:, place] = np.where(is_there, fields.data[at], 0)
    return characters.view(f"S{width}")[:, 0]


def _decimals(fields: Fields) -> Column | None:
    words = _words(fields)
    if words is None:
        return None
    characters = words.view(np.uint8)
    if not (DECIMAL[characters] | (characters == 0)).all():
        return None
    try:
        values = words.astype(np.float64)
    except ValueError:
        return None
    return values if np.isfinite(values).all() else None


def _instants(fields: Fields) -> Column | None:
    times = _without_zone(fields)
    if times is None or times.widths.min() < DATE_LEN:
        return None
    seconds, fractions = _seconds(times), _fractions(times)
    return None if seconds is None or fractions is None else seconds * NS + fractions


def _without_zone(fields: Fields) -> Fields | None:
    """Cut UTC off times that all name it; None if one has no room for it."""
    last = fields.data[np.maximum(fields.ends - 1, 0)]
    zone = ZONES[0] if last[0] == UTC else ZONES[1]
    if fields.widths.min() <= len(zone):
        return None
    at = fields.ends[:, None] + np.arange(-len(zone), 0)
    has_zone = (fields.data[at] == np.frombuffer(zone, np.uint8)).all(axis=1)
    if has_zone.all():
        return Fields(fields.data, fields.starts, fields.ends - len(zone))
    return fields


def _seconds(fields: Fields) -> Ints | None:
    """Return the seconds since 1970 of date and time."""
    for offset, allowed in SEPARATORS:
        if not np.isin(fields.data[fields.starts + offset], list(allowed)).all():
            return None
    parts = [_part(fields, offset, 2) for offset in (5, 8, 11, 14, 17)]
    year = _part(fields, 0, 4)
    if year is None or any(part is None for part in parts):
        return None
    month, day, hour, minute, second = (part for part in parts if part is not None)
    is_time = (hour < 24) & (minute < 60) & (second < 60)
    is_date = (year >= YEARS.start) & (year < YEARS.stop) & (month >= 1) & (month <= 12)
    if not (is_time & is_date).all():
        return None
    months = (year - 1970) * 12 + month - 1
    first, after = _first_day(months), _first_day(months + 1)
    if not ((day >= 1) & (day <= after - first)).all():
        return None
    days = first + day - 1
    return ((days * 24 + hour) * 60 + minute) * 60 + second


def _part(fields: Fields, offset: int, num: int) -> Ints | None:
    starts = fields.starts + offset
    part = Fields(fields.data, starts, starts + num)
    return _digits(part, part.widths)


def _first_day(months: Ints) -> Ints:
    """Return the days from 1970 to the first of each month, months counted from 1970."""
    days: Ints = months.astype("datetime64[M]").astype("datetime64[D]").astype(np.int64)
    return days


def _fractions(fields: Fields) -> Ints | None:
    """Return the nanoseconds behind the seconds."""
    widths = fields.widths - DATE_LEN - 1
    has_any = widths >= 0
    if not has_any.any():
        return np.zeros(len(widths), np.int64)
    if widths.max() > 9 or (widths == 0).any():
        return None
    dots = np.where(has_any, fields.starts + DATE_LEN, fields.starts + 4)
    if not np.where(has_any, fields.data[dots] == DOT, True).all():
        return None
    digits = _digits(fields, np.maximum(widths, 0))
    return None if digits is None else digits * 10 ** (9 - np.maximum(widths, 0))


_READERS: dict[Layout, Callable[[Fields], Column | None]] = {
    "whole": _whole_numbers,
    "decimal": _decimals,
    "instant": _instants,
    "word": _words,
}


def read_all(fields: Sequence[Fields], kinds: Sequence[Kind]) -> list[Column] | None:
    """Read columns; None if one value in one of them is odd."""
    read = []
    for each, kind in zip(fields, kinds, strict=True):
        values = read_fields(each, kind)
        if values is None:
            return None
        read.append(values)
    return read
