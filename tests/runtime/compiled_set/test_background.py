"""Compiling in the background; workers are threads with a tracer that tests steer."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from thread_workers import GRAPHS, FakeTracer, steer

from noria.runtime.compiled_set import background, worker, workers
from noria.runtime.compiled_set.background import NICENESS, BackgroundCompiler
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.local_set import LocalSet
from noria.runtime.compiled_set.tracing import Recipe
from noria.runtime.compiled_set.worker_count import WorkerCount

LONG_S = 600.0
RECIPE = cast(Recipe, SimpleNamespace())


def local_set(tmp_path: Path) -> LocalSet:
    return LocalSet(tmp_path / "set", key={"heads": 4}, num_blocks=())


def wait_for_end(compiler: BackgroundCompiler) -> None:
    """Follow the news until nothing more will be ready."""
    seen = 0
    while not compiler.is_over:
        seen = compiler.wait_for_news(seen, LONG_S)


def test_all_graphs_become_ready_and_are_in_the_set(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    store = local_set(tmp_path)
    compiler = BackgroundCompiler(store, RECIPE)
    assert (compiler.ready, compiler.is_over) == (frozenset(), False)

    compiler.start()
    wait_for_end(compiler)

    assert compiler.ready == set(GRAPHS)
    assert compiler.problem is None
    assert sorted(tracer.traced) == sorted(GRAPHS)
    assert {name: store.read(name) for name in GRAPHS} == {
        name: f"trace of {name}".encode() for name in GRAPHS
    }


def test_a_graph_is_ready_before_the_next_one_is_compiled(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    steer(tracer, **{GRAPHS[1]: lambda: go_on.wait(LONG_S) and None})
    monkeypatch.setattr(background, "count_workers", lambda wanted: WorkerCount(1, ""))
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)

    compiler.start()
    seen = compiler.wait_for_news(0, LONG_S)
    assert compiler.ready == {GRAPHS[0]}
    go_on.set()
    while compiler.ready != set(GRAPHS):
        seen = compiler.wait_for_news(seen, LONG_S)

    compiler.close()
    assert compiler.is_over


def test_a_graph_that_fails_is_told_with_its_reason(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    def refuse() -> None:
        raise RuntimeError("no such operator")

    steer(tracer, **{GRAPHS[2]: refuse})
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)

    compiler.start()
    wait_for_end(compiler)

    assert compiler.failed == {GRAPHS[2]: "RuntimeError: no such operator"}
    assert compiler.ready == {*GRAPHS} - {GRAPHS[2]}


def test_where_no_worker_starts_it_says_why(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(recipe: Recipe, niceness: int) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(background, "Worker", refuse)
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)

    compiler.start()
    wait_for_end(compiler)

    assert compiler.ready == frozenset()
    assert "Resource temporarily unavailable" in (compiler.problem or "")


def test_closing_stops_what_is_in_work_and_keeps_what_is_there(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    in_work, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        in_work.set()
        go_on.wait(LONG_S)

    steer(tracer, **{GRAPHS[1]: hang})
    monkeypatch.setattr(worker, "STOP_S", 0.1)  # a thread goes on, where a process is killed
    monkeypatch.setattr(background, "count_workers", lambda wanted: WorkerCount(1, ""))
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)
    compiler.start()
    assert in_work.wait(LONG_S)

    compiler.close()
    compiler.close()
    go_on.set()

    assert compiler.is_over
    assert compiler.problem == "compiling was stopped"
    folder = SetFolder.open(tmp_path / "set")
    assert list(folder.manifest.graphs) == [GRAPHS[0]]
    assert folder.verify() == []


def test_the_thread_that_compiles_may_close(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine that is forgotten is closed by whichever thread collects garbage."""
    store = local_set(tmp_path)
    publish = store.publish
    compiler = BackgroundCompiler(store, RECIPE)
    monkeypatch.setattr(background, "count_workers", lambda wanted: WorkerCount(1, ""))
    closed = []

    def publish_and_close(*args: Any, **kinds: Any) -> None:
        publish(*args, **kinds)
        compiler.close()
        closed.append(args[0])

    monkeypatch.setattr(store, "publish", publish_and_close)

    compiler.start()
    wait_for_end(compiler)

    assert closed == [GRAPHS[0]]
    assert list(store.manifest.graphs) == [GRAPHS[0]]


@pytest.mark.parametrize("is_started", [False, True])
def test_closing_before_anything_is_compiled(
    tmp_path: Path,
    tracer: type[FakeTracer],
    monkeypatch: pytest.MonkeyPatch,
    is_started: bool,
) -> None:
    in_listing, go_on = threading.Event(), threading.Event()

    def list_slowly(recipe: Recipe) -> object:
        in_listing.set()
        go_on.wait(LONG_S)
        return tracer(recipe).graphs

    monkeypatch.setattr(workers, "list_graphs", list_slowly)
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)
    if is_started:
        compiler.start()
        assert in_listing.wait(LONG_S)
        closing = threading.Thread(target=compiler.close)
        closing.start()
        while compiler.problem is None:
            compiler.wait_for_news(0, 0.01)
        go_on.set()
        closing.join()
        assert compiler.is_over
    else:
        compiler.close()

    assert tracer.traced == []
    assert SetFolder.open(tmp_path / "set").manifest.graphs == {}


def test_workers_stand_back_for_who_is_served(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    start = background.Worker

    def note(recipe: Recipe, niceness: int = 0) -> object:
        asked.append(niceness)
        return start(recipe, niceness)

    monkeypatch.setattr(background, "Worker", note)
    compiler = BackgroundCompiler(local_set(tmp_path), RECIPE)

    compiler.start()
    wait_for_end(compiler)

    assert set(asked) == {NICENESS}
    # Beside who is busy, the share of a CPU that 5 leaves is a quarter; 10 leaves a tenth.
    assert 0 < NICENESS <= 5
