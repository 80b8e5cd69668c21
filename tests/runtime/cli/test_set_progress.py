"""How the graphs of a set are shown while they are compiled."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from noria.runtime.cli.set_progress import show_graphs, table_of, visible
from noria.runtime.compiled_set.graph_states import GraphState, State


def graphs(*states: State) -> list[GraphState]:
    return [
        GraphState(f"g{at}", {}, 10, state, seconds=2.0, error="no memory")
        for at, state in enumerate(states)
    ]


def test_every_graph_that_ends_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown = graphs(*[State.WAITING] * 4)
    with show_graphs() as report:
        report([], 2)
        for at, end in enumerate((State.DONE, State.THERE, State.FAILED, State.DONE)):
            shown[at].state = end
            report(shown, 2)
            report(shown, 2)

    assert capsys.readouterr().err.splitlines() == [
        "compile: 2 workers",
        "compile: 1/4 g0 done, 2.0 s, 0 B; about 3 s left",
        "compile: 2/4 g1 there, 2.0 s, 0 B; about 2 s left",
        "compile: 3/4 g2 failed: no memory; about 1 s left",
        "compile: 4/4 g3 done, 2.0 s, 0 B; none left",
    ]


def test_the_table_shows_states_seconds_sizes_and_the_rest() -> None:
    shown = graphs(State.DONE, State.FAILED, State.WAITING)
    shown[0].num_bytes = 2048

    text = rendered(shown, max_rows=20)

    assert [line.split() for line in text.splitlines() if line.strip()] == [
        ["graph", "state", "seconds", "size"],
        ["g0", "done", "2.0", "2.0", "KiB"],
        ["g1", "failed", "2.0"],
        ["g2", "waiting"],
        ["2", "of", "3", "graphs,", "2", "workers,", "about", "1", "s", "left"],
    ]


def test_before_graphs_are_known_the_table_says_so() -> None:
    assert "listing graphs, 2 workers, time left not known yet" in rendered([], max_rows=20)


@pytest.mark.parametrize(
    ("num_ended", "first"), [(0, "g0"), (10, "g8"), (29, "g25")], ids=["start", "middle", "end"]
)
def test_of_many_graphs_those_around_the_work_are_shown(num_ended: int, first: str) -> None:
    many = graphs(*[State.DONE] * num_ended, *[State.WAITING] * (30 - num_ended))
    many[num_ended].state = State.COMPILING

    shown = visible(many, 5)

    assert shown[0].name == first
    assert len(shown) == 5
    assert many[num_ended] in shown


def rendered(shown: list[GraphState], max_rows: int) -> str:
    console = Console(file=io.StringIO(), width=80)
    console.print(table_of(shown, 2, max_rows=max_rows))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()
