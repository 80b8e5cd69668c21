"""How far a long command is: a bar on a terminal, plain lines elsewhere. Always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

Progress = Callable[[str, int, int], None]
"""Called with what is worked on, how many are done and how many there are (0: unknown)."""

MAX_LINES = 20


@contextmanager
def show_progress(title: str) -> Iterator[Progress]:
    """Yield what to call as work goes on; ``title`` says in a word what the work is."""
    if sys.stderr.isatty():
        with _bar(title) as progress:
            yield progress
    else:
        yield _Lines(title)


class _Lines:
    """Prints every call, or about twenty lines where there are many more."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._last_part = -1

    def __call__(self, label: str, num_done: int, total: int) -> None:
        part = num_done // max(1, total // MAX_LINES)
        if part > self._last_part or num_done == total:
            self._last_part = part
            count = f"{num_done}/{total} " if total else ""
            click.echo(f"{self._title}: {count}{label}".rstrip(), err=True)


@contextmanager
def _bar(title: str) -> Iterator[Progress]:
    """Draw a bar with elapsed and expected remaining time; it vanishes at the end."""
    from rich import progress as rich_progress
    from rich.console import Console

    columns = (
        rich_progress.TextColumn("{task.description}", markup=False),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeElapsedColumn(),
        rich_progress.TextColumn("elapsed,"),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("left"),
    )
    bar = rich_progress.Progress(
        *columns,
        console=Console(stderr=True),
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=None)

        def update(label: str, num_done: int, total: int) -> None:
            bar.update(
                task, description=f"{title} {label}", completed=num_done, total=total or None
            )

        yield update
