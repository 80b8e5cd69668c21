"""Drawings as text: axes, lines, bars, labels. Colours are classes, which the page decides on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10

FONT_WIDTH = 7.0
"""Of a character of the small font, on average, in the units of a drawing."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from ``low`` to ``high`` on a line from ``start`` to ``end``.

    >>> Axis(0, 50, 100, 200).place(25)
    150.0
    >>> Axis(1, 16, 0, 100, is_log=True).place(4)
    50.0
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def place(self, value: float) -> float:
        """Return where a value is; beyond an end it is there."""
        kept = min(max(value, self.low), self.high)
        if self.is_log:
            share = log2(kept / self.low) / log2(self.high / self.low)
        else:
            share = (kept - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self, num: int = 5) -> tuple[float, ...]:
        """Return round values on it, about so many; powers of two where it is logarithmic."""
        if not self.is_log:
            return round_values(self.low, self.high, num)
        powers = range(ceil(log2(self.low)), floor(log2(self.high)) + 1)
        step = max(1, -(-len(powers) // num))
        return tuple(2.0**power for power in powers[::step])


def round_values(low: float, high: float, num: int) -> tuple[float, ...]:
    """Return multiples of 1, 2 or 5 times a power of ten between two values, about ``num``.

    >>> round_values(0, 93, 5)
    (0.0, 20.0, 40.0, 60.0, 80.0)
    """
    power = 10.0 ** floor(log10((high - low) / num))
    steps = [factor * power for factor in (1, 2, 5, 10)]
    step = next(one for one in steps if (high - low) / one <= num)
    first, last = ceil(low / step - 1e-9), floor(high / step + 1e-9)
    return tuple(round(index * step, 12) for index in range(first, last + 1))


def round_up(value: float) -> float:
    """Return a round number that is not smaller: the end of an axis.

    >>> round_up(41.2), round_up(0.0)
    (50.0, 1.0)
    """
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)
    return next(round(one * power, 12) for one in steps if value <= one * power * (1 + 1e-9))


def element(name: str, content: str = "", **attributes: object) -> str:
    """Return an element: ``content`` as it is, values of attributes escaped.

    A trailing underscore of an attribute's name is left out, others are hyphens.
    """
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{given}>{content}</{name}>" if content else f"<{name}{given}/>"


def drawing(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    """Return a whole drawing; ``title`` is what it says to those who do not see it."""
    return element(
        "svg",
        "".join(parts),
        viewBox=f"0 0 {_plain(width)} {_plain(height)}",
        role="img",
        aria_label=title,
        xmlns="http://www.w3.org/2000/svg",
    )


def label(x: float, y: float, text: str, *, anchor: str = "start", kind: str = "") -> str:
    """Return a text; ``anchor``: which end of it is at ``x``."""
    return element("text", escape(text), x=x, y=y, text_anchor=anchor, class_=kind or None)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    """Return a straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def bar(x: float, y: float, width: float, height: float, kind: str, tip: str = "") -> str:
    """Return a rectangle, with what is shown of it under a pointer."""
    return element(
        "rect", _tip(tip), x=x, y=y, width=max(0.0, width), height=max(0.0, height), class_=kind
    )


def dot(x: float, y: float, radius: float, kind: str, tip: str = "") -> str:
    """Return a circle, with what is shown of it under a pointer."""
    return element("circle", _tip(tip), cx=x, cy=y, r=radius, class_=kind)


def path(points: Sequence[tuple[float, float]], kind: str, *, is_steps: bool = False) -> str:
    """Return lines through points; ``is_steps``: level until the next, then straight up or down."""
    text = ""
    for index, (x, y) in enumerate(points):
        if index and is_steps:
            text += f"H{_plain(x)}V{_plain(y)}"
        else:
            text += f"{'L' if index else 'M'}{_plain(x)} {_plain(y)}"
    return element("path", d=text, class_=kind)


Format = Callable[[float], str]


def grid(x: Axis, y: Axis, format_x: Format | None, format_y: Format | None) -> str:
    """Return both axes: lines and labels at round values; none of an axis without a format."""
    parts = []
    if format_y is not None:
        for value in y.ticks():
            at = y.place(value)
            parts.append(line(x.start, at, x.end, at, "grid"))
            parts.append(label(x.start - 6, at + 4, format_y(value), anchor="end"))
    if format_x is not None:
        widest = max((len(format_x(value)) for value in x.ticks()), default=1)
        room = max(2, int((x.end - x.start) / ((widest + 2) * FONT_WIDTH)))
        for value in x.ticks(min(8, room)):
            at = x.place(value)
            parts.append(line(at, y.start, at, y.start + 4, "axis"))
            parts.append(label(at, y.start + 17, format_x(value), anchor="middle"))
    parts.append(line(x.start, y.start, x.end, y.start, "axis"))
    return "".join(parts)


def legend(x: float, y: float, entries: Sequence[tuple[str, str]], mark: str = "bar") -> str:
    """Return names beside their marks, in one row: (class, name); ``mark``: bar, or line."""
    parts = []
    for kind, name in entries:
        if mark == "bar":
            parts.append(bar(x, y - 9, 10, 10, kind))
        else:
            parts.append(line(x - 4, y - 4, x + 10, y - 4, kind))
        parts.append(label(x + 15, y, name))
        x += 15 + len(name) * FONT_WIDTH + 14
    return "".join(parts)


def _tip(text: str) -> str:
    return element("title", escape(text)) if text else ""


def _plain(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".") if value else "0"
    return str(value)
