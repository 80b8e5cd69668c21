"""A report as one HTML page, which needs nothing else: drawings and styles are in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape

from .numbers import bytes_text, percent_text, time_text
from .sections import Figure, Section, head_sentence, sections
from .sentences import verdict
from .style import STYLE
from .tables import Table
from .values import Report

UNIT = re.compile(r"(\d) (%|us|ms|s|min|h|d|rows|B|[KMGT]iB)(?![\w])")


def html_report(report: Report) -> str:
    """Return the page, with a newline at its end. Everything from outside is escaped."""
    name = escape(report.traffic.name)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>Bucket plan for {name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f'<header>\n<h1>Bucket plan for {name}</h1>\n<p class="verdict">'
        f"{_words(verdict(report))}</p>\n"
        f'<p class="soft">{_words(head_sentence(report))}</p>\n{_key_figures(report)}\n</header>\n'
        f"{''.join(_section(report, one) for one in sections(report))}"
        f"{_footer(report)}</body>\n</html>\n"
    )


def _key_figures(report: Report) -> str:
    bill, step_s = report.bill, report.phases[1].step_s
    figures = [
        ("saved", "-" if report.default is None else percent_text(report.default.saved_share)),
        ("waste", percent_text(report.time_waste)),
        ("graphs", str(bill.num_graphs)),
        ("compiling", time_text(bill.wall_s)),
        ("decode step", time_text(step_s) if step_s else "-"),
        ("memory", bytes_text(bill.num_bytes)),
        ("ready after", time_text(report.warm_up[0].wall_s)),
        ("shapes covered", "all" if all(one.is_proven for one in report.coverage) else "NOT ALL"),
    ]
    cells = (f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in figures)
    return f"<dl>{''.join(cells)}</dl>"


def _section(report: Report, section: Section) -> str:
    kind = ' class="warnings"' if section.title == "Warnings" else ""
    body = "".join(_blocks(report, section))
    return f"<section{kind}>\n<h2>{escape(section.title)}</h2>\n{body}</section>\n"


def _blocks(report: Report, section: Section) -> Iterator[str]:
    """Return sentences and, folded, what is drawn too; the drawings beside them; other tables."""
    words = "".join(f"<p>{_words(one)}</p>\n" for one in section.blocks if isinstance(one, str))
    drawn = "".join(_figure(report, one) for one in section.blocks if isinstance(one, Figure))
    tables = [one for one in section.blocks if isinstance(one, Table)]
    words += "".join(_folded(one) for one in tables if one.is_drawn)
    kind = "figures" if drawn else "alone"
    yield f'<div class="{kind}">\n<div class="words">\n{words}</div>\n{drawn}</div>\n'
    yield from (_table(one) for one in tables if not one.is_drawn)


def _words(text: str) -> str:
    """Escape a text and keep its numbers and their units on one line."""
    return UNIT.sub(r"\1&#160;\2", escape(text)).replace("&lt; ", "&lt;&#160;")


def _figure(report: Report, figure: Figure) -> str:
    caption = f"<figcaption>{escape(figure.title)}</figcaption>"
    return f"<figure>{caption}{figure.draw(report)}</figure>\n"


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(_row(table, place) for place in range(len(table.rows)))
    return (
        f'<div class="scroll"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n'
        "</table></div>\n"
    )


def _folded(table: Table) -> str:
    """Return a table that opens when it is asked for."""
    name = escape(table.head[0])
    return f"<details><summary>{name}, as a table</summary>\n{_table(table)}</details>\n"


def _row(table: Table, place: int) -> str:
    *cells, last = table.rows[place]
    kind = ' class="marked"' if place == table.marked else ""
    text = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
    bar = ""
    if table.shares:
        width = 100 * table.shares[place] / (max(table.shares) or 1.0)
        bar = f' class="bar" style="--share: {width:.1f}%"'
    return f"<tr{kind}>{text}<td{bar}>{escape(last)}</td></tr>\n"


def _footer(report: Report) -> str:
    limits = ", ".join(f"{name} {value}" for name, value in report.limits)
    return (
        "<footer><p>Waste is what padding adds, as a share of what the same steps or prompts would "
        "take in graphs of exactly their shapes.</p>"
        f"<p>Limits: {escape(limits)}. Traffic: sha256 {escape(report.traffic.sha256)}.</p>"
        "</footer>\n"
    )
