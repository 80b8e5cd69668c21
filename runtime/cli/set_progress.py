"""How far the graphs of a set are: a live table on a terminal, lines elsewhere; on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ..compiled_set.graph_states import GraphState, Report, State, remaining_s
from .set_tables import num_text
from .tables import size_text

if TYPE_CHECKING:
    from rich.console import Group

OTHER_LINES = 6
"""Of the live table: its header, its last line and what is around it."""
STYLES = {State.COMPILING: "bold", State.FAILED: "red", State.WAITING: "dim"}
ENDED = (State.DONE, State.FAILED, State.THERE)


@contextmanager
def show_graphs() -> Iterator[Report]:
    """Yield what to call with all graphs as they are compiled."""
    if sys.stderr.isatty():
        with _live_table() as report:
            yield report
    else:
        yield _Lines()


class _Lines:
    """Prints a line for every graph that has ended."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._is_started = False

    def __call__(self, graphs: Sequence[GraphState], num_workers: int) -> None:
        if not self._is_started:
            self._is_started = True
            click.echo(f"compile: {num_text(num_workers, 'worker')}", err=True)
        ended = [graph for graph in graphs if graph.state in ENDED]
        for graph in ended:
            if graph.name not in self._said:
                self._said.add(graph.name)
                rest = _rest_text(graphs, num_workers)
                line = f"compile: {len(self._said)}/{len(graphs)} {_graph_text(graph)}; {rest}"
                click.echo(line, err=True)


def _graph_text(graph: GraphState) -> str:
    if graph.state is State.FAILED:
        return f"{graph.name} failed: {graph.error}"
    return f"{graph.name} {graph.state}, {graph.seconds:.1f} s, {size_text(graph.num_bytes)}"


def _rest_text(graphs: Sequence[GraphState], num_workers: int) -> str:
    if graphs and all(graph.state in ENDED for graph in graphs):
        return "none left"
    seconds = remaining_s(graphs, num_workers, time.monotonic())
    return "time left not known yet" if seconds is None else f"about {seconds:.0f} s left"


@contextmanager
def _live_table() -> Iterator[Report]:
    """Draw the table again and again; it vanishes at the end."""
    from rich.console import Console
    from rich.live import Live

    console = Console(stderr=True)
    shown: list[tuple[Sequence[GraphState], int]] = [((), 0)]
    live = Live(
        get_renderable=lambda: table_of(*shown[0], max_rows=console.height - OTHER_LINES),
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
    )
    with live:

        def report(graphs: Sequence[GraphState], num_workers: int) -> None:
            shown[0] = graphs, num_workers

        yield report


def table_of(graphs: Sequence[GraphState], num_workers: int, *, max_rows: int) -> Group:
    """Return the table of a moment; of many graphs, those around the ones in work."""
    from rich.console import Group
    from rich.table import Table

    num_ended = sum(graph.state in ENDED for graph in graphs)
    count = f"{num_ended} of {len(graphs)} graphs" if graphs else "listing graphs"
    last = f"{count}, {num_text(num_workers, 'worker')}, {_rest_text(graphs, num_workers)}"
    table = Table(box=None)
    for name in ("graph", "state", "seconds", "size"):
        table.add_column(name, justify="left" if name in ("graph", "state") else "right")
    for graph in visible(graphs, max_rows):
        in_work = graph.state is State.COMPILING
        seconds = time.monotonic() - graph.since if in_work else graph.seconds
        table.add_row(
            graph.name,
            graph.state,
            "" if graph.state is State.WAITING else f"{seconds:.1f}",
            size_text(graph.num_bytes) if graph.num_bytes else "",
            style=STYLES.get(graph.state),
        )
    return Group(table, last)


def visible(graphs: Sequence[GraphState], max_rows: int) -> Sequence[GraphState]:
    """Return so many neighbours, with the first graph in work in the middle if that can be."""
    num_rows = max(1, max_rows)
    in_work = [at for at, graph in enumerate(graphs) if graph.state is State.COMPILING]
    middle = in_work[0] if in_work else len(graphs)
    start = min(max(0, middle - num_rows // 2), max(0, len(graphs) - num_rows))
    return graphs[start : start + num_rows]
