"""``noria export``: a plan as the configuration of another engine, and what that costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...bucketing.planner.targets import TARGETS
from ..errors import NoriaError
from .tables import format_table

if TYPE_CHECKING:
    from ...bucketing.planner.exports import Export, Price

HEADER = ("rule", "graphs", "compiling", "steps", "change")
UNPRICED = (
    "No price: the plan does not say what traffic it was made for, so that its sizes are kept"
)


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option(
    "--to", "target", type=click.Choice([*TARGETS]), required=True, help="The other engine."
)
@click.option(
    "--keep-sizes",
    is_flag=True,
    help="Take the sizes of the plan, even where that makes more graphs or more padding.",
)
def export(plan: Path, target: str, keep_sizes: bool) -> None:
    """Write a plan as the configuration of another engine.

    Reads the plan file PLAN. Prints the configuration alone, so that it can be piped. On stderr
    stand how to start the engine with it, and what each of its rules for graphs costs against the
    plan: graphs, seconds of compiling with one worker, and seconds of the steps that the plan was
    made for. Where a rule would make more graphs, as many as the plan has are chosen anew.
    """
    found = _exported(plan, target, keep_sizes)
    click.echo(found.text)
    click.echo("\n".join(_lines(found)), err=True)


def _exported(path: Path, target: str, keep_sizes: bool) -> Export:
    from ...bucketing.planner import exports
    from ..plan_files import read_plan

    plan = read_plan(path)
    try:
        traffic = exports.saved_traffic(plan)
        return exports.export(plan, target, traffic, keeps_sizes=keep_sizes)
    except ValueError as error:
        raise NoriaError(f"{path}: {' '.join(str(error).split())}") from None


def _lines(found: Export) -> Iterator[str]:
    yield f"{found.target.title} ({found.target.source}): {found.usage}"
    yield ""
    yield format_table(HEADER, [*_rows(found)])
    notes = [f"No price: {note}" for note in found.notes]
    if found.prices[0].seconds is None:
        notes.insert(0, UNPRICED)
    if notes:
        yield "\n".join(["", *notes])


def _rows(found: Export) -> Iterator[tuple[str, ...]]:
    """Yield a row for the plan and for each rule that changes a number."""
    plan = before = found.prices[0]
    yield _row(plan.text, plan, plan)
    for price in found.prices[1:]:
        if (price.num_graphs, price.seconds) != (before.num_graphs, before.seconds):
            yield _row(price.text, price, plan)
        before = price
    if found.kept is not None:
        yield _row("instead, with the plan's own sizes (--keep-sizes)", found.kept, plan)


def _row(text: str, price: Price, plan: Price) -> tuple[str, ...]:
    if price.compile_s is None or price.seconds is None or plan.seconds is None:
        return text, str(price.num_graphs), "", "", ""
    change = f"{100 * (price.seconds / plan.seconds - 1):+.1f}%" if plan.seconds else ""
    return (
        text,
        str(price.num_graphs),
        f"{price.compile_s:.0f} s",
        f"{price.seconds:.2f} s",
        "" if price is plan else change,
    )
