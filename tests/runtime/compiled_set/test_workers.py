"""Handing out graphs and publishing them; workers are threads with a tracer that tests steer."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from thread_workers import GRAPHS, FakeTracer, ThreadProcess, compiler_of, states, steer

from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.graph_states import GraphState, State, remaining_s
from noria.runtime.compiled_set.tracing import Recipe
from noria.runtime.compiled_set.worker_count import WORKER_BYTES, count_workers
from noria.runtime.compiled_set.workers import (
    SetCompiler,
    missing_graphs,
)
from noria.runtime.errors import SetError


def refuse() -> None:
    raise RuntimeError("first line\nsecond line")


def be_killed() -> None:
    raise SystemExit(-9)


@pytest.mark.parametrize("num_workers", [1, 3])
def test_every_graph_is_traced_once_and_published(
    tmp_path: Path, tracer: type[FakeTracer], num_workers: int
) -> None:
    compiler = compiler_of(tmp_path / "set")

    compiler.run(num_workers)

    folder = SetFolder.open(tmp_path / "set")
    assert sorted(tracer.traced) == sorted(GRAPHS)
    assert states(compiler) == dict.fromkeys(GRAPHS, State.DONE)
    assert {name: folder.read(name) for name in GRAPHS} == {
        name: f"trace of {name}".encode() for name in GRAPHS
    }
    assert all(graph.peak_bytes > 2**20 for graph in folder.manifest.graphs.values())
    assert folder.verify() == []


def test_one_worker_takes_graphs_in_the_order_of_the_list(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    compiler_of(tmp_path / "set").run(1)

    assert tracer.traced == list(GRAPHS)


def test_a_graph_that_fails_leaves_its_whole_error_and_stops_no_other(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    steer(tracer, decode_s4_c64=refuse)
    compiler = compiler_of(tmp_path / "set")

    compiler.run(2)

    folder = SetFolder.open(tmp_path / "set")
    error_text = folder.read_file("errors/decode_s4_c64.txt").decode()
    entry = folder.manifest.graphs["decode_s4_c64"]
    assert states(compiler) == {**dict.fromkeys(GRAPHS, State.DONE), "decode_s4_c64": State.FAILED}
    assert entry.error == "RuntimeError: first line second line"
    assert "Traceback" in error_text
    assert "in refuse" in error_text
    assert missing_graphs(folder.manifest) == ["decode_s4_c64"]


def test_only_what_failed_is_compiled_again(tmp_path: Path, tracer: type[FakeTracer]) -> None:
    steer(tracer, decode_s4_c64=refuse)
    compiler_of(tmp_path / "set").run(1)
    steer(tracer)
    tracer.traced.clear()
    again = compiler_of(tmp_path / "set")

    again.run(1)

    assert tracer.traced == ["decode_s4_c64"]
    assert states(again) == {**dict.fromkeys(GRAPHS, State.THERE), "decode_s4_c64": State.DONE}
    assert SetFolder.open(tmp_path / "set").verify() == []
    assert not (tmp_path / "set" / "errors" / "decode_s4_c64.txt").exists()


def test_a_killed_worker_is_a_failed_graph_and_another_goes_on(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    steer(tracer, prefill_t64_c64=be_killed, decode_s2_c64=be_killed)
    compiler = compiler_of(tmp_path / "set")

    compiler.run(1)

    failed = [graph for graph in compiler.graphs if graph.state is State.FAILED]
    assert [graph.name for graph in failed] == ["prefill_t64_c64", "decode_s2_c64"]
    assert failed[0].error == (
        "while this graph was compiled, the worker was killed by SIGKILL (a system short of memory "
        "does that; fewer workers need less)"
    )
    assert tracer.traced == list(GRAPHS)


def test_a_tracer_that_cannot_be_made_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracer: type[FakeTracer]
) -> None:
    def fail(recipe: Recipe) -> None:
        raise ValueError("no such target\nmore")

    monkeypatch.setattr(worker, "Tracer", fail)

    with pytest.raises(SetError) as refusal:
        compiler_of(tmp_path / "set").run(2)

    assert str(refusal.value) == "no worker can start: no such target"


def test_workers_that_are_killed_at_once_are_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracer: type[FakeTracer]
) -> None:
    def die(recipe: Recipe) -> None:
        be_killed()

    monkeypatch.setattr(worker, "Tracer", die)

    with pytest.raises(SetError, match="no worker can start: the worker was killed by SIGKILL"):
        compiler_of(tmp_path / "set").run(2)


def test_an_interrupt_leaves_a_usable_set_and_the_next_run_goes_on(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    """E05: what was published before the end is whole, and nothing else is listed."""

    def interrupt(graphs: Sequence[GraphState], num_workers: int) -> None:
        if sum(graph.state is State.DONE for graph in graphs) == 2:
            raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        compiler_of(tmp_path / "set", interrupt).run(1)
    folder = SetFolder.open(tmp_path / "set")
    first = dict.fromkeys(folder.manifest.graphs)
    tracer.traced.clear()

    compiler_of(tmp_path / "set").run(1)

    assert threading.active_count() == before
    assert sorted(first) == sorted(GRAPHS[:2])
    assert tracer.traced == list(GRAPHS[2:])
    assert SetFolder.open(tmp_path / "set").verify() == []


def test_a_compiler_that_was_stopped_compiles_nothing(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    compiler = compiler_of(tmp_path / "set")

    compiler.stop()
    compiler.run(2)

    assert states(compiler) == dict.fromkeys(GRAPHS, State.WAITING)
    assert tracer.traced == []


def test_a_compiler_can_be_stopped_between_two_graphs(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    def stop(graphs: Sequence[GraphState], num_workers: int) -> None:
        if graphs[1].state is State.DONE:
            compiler.stop()

    compiler = compiler_of(tmp_path / "set", stop)
    compiler.run(1)

    check_two_done(compiler, tmp_path / "set")


def test_another_thread_stops_a_compiler_whatever_is_in_work(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_tracing, is_killed = threading.Event(), threading.Event()

    def trace_until_killed() -> None:
        is_tracing.set()
        is_killed.wait(600)

    steer(tracer, decode_s2_c64=trace_until_killed)
    monkeypatch.setattr(ThreadProcess, "kill", lambda process: is_killed.set())
    compiler = compiler_of(tmp_path / "set")
    running = threading.Thread(target=compiler.run, args=(1,))

    running.start()
    assert is_tracing.wait(600)
    compiler.stop()
    running.join(600)

    assert not running.is_alive()
    assert is_killed.is_set()
    check_two_done(compiler, tmp_path / "set")


def check_two_done(compiler: SetCompiler, path: Path) -> None:
    folder = SetFolder.open(path)
    assert [*states(compiler).values()] == [State.DONE] * 2 + [State.WAITING] * (len(GRAPHS) - 2)
    assert sorted(folder.manifest.graphs) == sorted(GRAPHS[:2])
    assert folder.verify() == []


def test_no_more_workers_start_than_there_are_graphs_to_compile(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    folder = SetFolder.prepare(tmp_path / "set", key={"heads": 4}, num_blocks=[9])
    for name in GRAPHS[1:]:
        folder.publish(name, b"there", key={"kind": name}, seconds=1.0, peak_bytes=5)
    compiler = compiler_of(tmp_path / "set")

    compiler.run(3)

    assert compiler.num_workers == 1
    assert tracer.traced == [GRAPHS[0]]


def test_a_set_that_cannot_be_written_ends_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tracer: type[FakeTracer]
) -> None:
    def full(*args: object, **named: object) -> None:
        raise SetError("graphs cannot be written: No space left on device")

    monkeypatch.setattr(SetFolder, "publish", full)
    before = threading.active_count()

    with pytest.raises(SetError, match="No space left"):
        compiler_of(tmp_path / "set").run(2)

    assert threading.active_count() == before


def test_what_another_process_publishes_meanwhile_is_not_traced(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    other = SetFolder.prepare(tmp_path / "set", key={"heads": 4}, num_blocks=[9])

    def publish() -> None:
        key = {"kind": GRAPHS[2]}
        other.publish(GRAPHS[2], b"theirs", key=key, seconds=1.0, peak_bytes=5)

    steer(tracer, prefill_t64_c64=publish)
    compiler = compiler_of(tmp_path / "set")

    compiler.run(1)

    assert GRAPHS[2] not in tracer.traced
    assert compiler.graphs[2].state is State.THERE
    assert SetFolder.open(tmp_path / "set").read(GRAPHS[2]) == b"theirs"


def test_a_graph_of_another_key_is_compiled_again(tmp_path: Path, tracer: type[FakeTracer]) -> None:
    folder = SetFolder.prepare(tmp_path / "set", key={"heads": 4}, num_blocks=[9])
    folder.publish(GRAPHS[0], b"old", key={"kind": "old"}, seconds=1.0, peak_bytes=5)

    compiler_of(tmp_path / "set").run(1)

    assert tracer.traced == list(GRAPHS)
    assert SetFolder.open(tmp_path / "set").read(GRAPHS[0]) == f"trace of {GRAPHS[0]}".encode()


@pytest.mark.parametrize(
    ("wanted", "num_free", "cpus", "num", "reason"),
    [
        (None, 100, 4, 4, "4 CPUs"),
        (None, 3, 4, 3, "free memory, 512 MiB a worker"),
        (None, 0, 4, 1, "free memory, 512 MiB a worker"),
        (2, 100, 4, 2, "as asked for"),
        (8, 100, 4, 4, "4 CPUs"),
        (8, 3, 4, 3, "free memory, 512 MiB a worker"),
    ],
)
def test_workers_are_bounded_by_what_is_asked_by_cpus_and_by_memory(
    wanted: int | None, num_free: int, cpus: int, num: int, reason: str
) -> None:
    found = count_workers(wanted, free_bytes=num_free * WORKER_BYTES, num_cpus=cpus)

    assert (found.num, found.reason) == (num, reason)


def test_the_rest_takes_as_long_as_what_is_done_has_taken() -> None:
    graphs = [GraphState(name, {}, 10) for name in "abcd"]
    assert remaining_s(graphs, 2, 0.0) is None

    graphs[0].state, graphs[0].seconds = State.DONE, 4.0
    graphs[1].state, graphs[1].since = State.COMPILING, 100.0
    graphs[2].state, graphs[2].seconds = State.THERE, 50.0

    # The second has 3 of its 4 seconds left, the last one 4.
    assert remaining_s(graphs, 1, 101.0) == pytest.approx(7.0)
    assert remaining_s(graphs, 2, 101.0) == pytest.approx(3.5)
    assert remaining_s(graphs, 1, 200.0) == pytest.approx(4.0)
