"""A report as plain text, for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from textwrap import fill

from .sections import Block, Figure, head_sentence, sections
from .sentences import verdict
from .tables import Table
from .values import Report

WIDTH = 100
NUM_BRIEF_ROWS = 9


def text_report(report: Report) -> str:
    """Return the report, with a newline at its end."""
    title = f"Plan for {report.traffic.name}: {head_sentence(report)}"
    parts = [_paragraph(title), _paragraph(verdict(report))]
    for section in sections(report):
        blocks = [_block(one) for one in section.blocks if not isinstance(one, Figure)]
        parts.append("\n".join([section.title.upper(), *blocks]))
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Table):
        return "\n".join(_lines(block))
    assert isinstance(block, str)
    return _paragraph(block)


def _paragraph(text: str) -> str:
    return fill(" ".join(text.split()), WIDTH)


def _lines(table: Table) -> Iterator[str]:
    """Write a table; its head takes two lines, and a star is before the plan's row."""
    places = _brief(table) if table.is_drawn else range(len(table.rows))
    head = [_halves(cell) for cell in table.head]
    lines = [[first for first, _ in head], [second for _, second in head]]
    lines += [list(table.rows[place]) for place in places]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for place, line in zip((None, None, *places), lines, strict=True):
        is_marked = place is not None and place == table.marked
        cells = [line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]
        yield (("* " if is_marked else "  ") + "  ".join(cells)).rstrip()


def _halves(cell: str) -> tuple[str, str]:
    first, _, second = cell.rpartition(" ")
    return first, second


def _brief(table: Table) -> Sequence[int]:
    """Return places of the first rows, the last, the marked, and ever fewer between."""
    last = len(table.rows) - 1
    if last < NUM_BRIEF_ROWS:
        return range(last + 1)
    ratio = last ** (1 / (NUM_BRIEF_ROWS - 1))
    places = {0, *(round(ratio**power) for power in range(NUM_BRIEF_ROWS))}
    return sorted(places | ({table.marked} if table.marked is not None else set()))
