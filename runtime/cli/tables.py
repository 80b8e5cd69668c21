"""Plain text tables: aligned columns that read well on a terminal and in a log."""

from __future__ import annotations

from collections.abc import Sequence


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]], num_left: int = 1) -> str:
    """Return lines of columns: the first ``num_left`` aligned left, the others right.

    >>> print(format_table(["graph", "rows"], [["a", "128"], ["bcdefg", "8"]]))
    graph   rows
    a        128
    bcdefg     8
    """
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(_format_line(line, widths, num_left) for line in lines)


def percent(share: float) -> str:
    """Return a share as text; what is not 0 or 1 never reads as 0 or 100.

    >>> percent(0.5), percent(0.9996), percent(0.0003), percent(0.0)
    ('50.0%', '99.9%', '0.1%', '0.0%')
    """
    value = round(100 * share, 1)
    if 0 < share < 1:
        value = min(max(value, 0.1), 99.9)
    return f"{value:.1f}%"


def waste_text(share: float, time_share: float) -> str:
    """Return a waste of tokens, and in brackets that of time, which rounding may leave below 0.

    >>> waste_text(0.5, -1e-17)
    '50.0% (0.0%)'
    """
    return f"{percent(max(0.0, share))} ({percent(max(0.0, time_share))})"


def seconds_text(seconds: float) -> str:
    """Return seconds of a column that stays seconds: three digits where they are few.

    >>> seconds_text(1234.56), seconds_text(10.0), seconds_text(0.12345), seconds_text(0.0)
    ('1,234.6', '10.0', '0.123', '0')
    """
    return f"{seconds:,.1f}" if seconds >= 10 else f"{seconds:.3g}"


def size_text(num_bytes: int) -> str:
    """Return bytes as text.

    >>> size_text(999), size_text(1536), size_text(3 * 2**30)
    ('999 B', '1.5 KiB', '3.0 GiB')
    """
    size, units = float(num_bytes), ("B", "KiB", "MiB", "GiB", "TiB")
    for unit in units:
        if size < 1024 or unit == units[-1]:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("the last unit takes every size")


def _format_line(line: Sequence[str], widths: Sequence[int], num_left: int) -> str:
    cells = (
        cell.ljust(width) if column < num_left else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(line, widths, strict=True))
    )
    return "  ".join(cells).rstrip()
