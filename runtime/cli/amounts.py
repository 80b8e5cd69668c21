"""Amounts as people write them: 15m, 24h, 2GiB."""

from __future__ import annotations

import re

import click

from ..errors import ConfigError
from ..typed_reader import read_memory_size
from .failures import UserMistake

DURATION = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)(ms|s|m|h|d)?", re.ASCII)
SECONDS = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds, as ``90``, ``90s``, ``15m``, ``24h`` or ``7d``; more than none."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the seconds; refuse what is none in one line."""
        if isinstance(value, float):
            return value
        match = DURATION.fullmatch(str(value))
        seconds = float(match[1]) * SECONDS[match[2] or "s"] if match else 0.0
        if seconds <= 0:
            raise _mistake(param, value, "a time such as 90s, 15m or 24h")
        return seconds


class MemorySize(click.ParamType):  # type: ignore[type-arg]
    """Bytes, as a number or ``512MiB`` or ``2GiB``."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the bytes; refuse what is none in one line."""
        given = int(str(value)) if re.fullmatch(r"\d{1,18}", str(value), re.ASCII) else value
        try:
            return read_memory_size("", given)
        except ConfigError:
            raise _mistake(param, value, "bytes or a size such as 512MiB or 2GiB") from None


class Number(click.ParamType):  # type: ignore[type-arg]
    """A number of at least ``least``, whole if that is an integer."""

    name = "number"

    def __init__(self, least: float) -> None:
        """Take the least number that fits."""
        self.least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number; refuse what is none in one line."""
        is_whole = isinstance(self.least, int)
        pattern = r"\d{1,9}" if is_whole else r"\d{1,9}(\.\d{1,9})?"
        if not re.fullmatch(pattern, str(value), re.ASCII) or float(str(value)) < self.least:
            kind = "a whole number" if is_whole else "a number"
            raise _mistake(param, value, f"{kind} of at least {self.least:g}")
        return int(str(value)) if is_whole else float(str(value))


def duration_text(seconds: float) -> str:
    """Return seconds in the unit that reads best.

    >>> duration_text(0.0123), duration_text(75), duration_text(5400), duration_text(200000)
    ('12.3 ms', '75.0 s', '90.0 min', '55.6 h')
    """
    for limit, unit, text in ((1.0, 1e-3, "ms"), (120.0, 1.0, "s"), (7200.0, 60.0, "min")):
        if seconds < limit:
            return f"{seconds / unit:.1f} {text}"
    return f"{seconds / 3600:.1f} h"


def _mistake(param: click.Parameter | None, value: object, fits: str) -> UserMistake:
    name = param.opts[-1] if param else "option"
    return UserMistake(f"{name}: is {str(value)!r:.60}; must be {fits}")
