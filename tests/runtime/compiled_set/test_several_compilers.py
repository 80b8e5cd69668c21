"""Several compilers of one set: each graph is traced once, by whoever has claimed it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import stub_compiler
from thread_workers import GRAPHS, FakeTracer, compiler_of, states, steer

from noria.runtime.compiled_set.claims import take_claim
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.graph_states import State
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.compiled_set.workers import SetCompiler

NAME = GRAPHS[1]
PAUSE_S = 0.005
"""Between two looks, which leaves the machine to those that are looked at."""


@contextmanager
def running(compiler: SetCompiler) -> Iterator[threading.Thread]:
    """Run a compiler in a thread; stop it if it has not ended in the end."""
    thread = threading.Thread(target=compiler.run, args=(1,))
    thread.start()
    try:
        yield thread
    finally:
        compiler.stop()
        thread.join(600)


def hidden_files(path: Path) -> list[str]:
    """Return what only writers see."""
    return sorted(file.name for file in path.rglob(".*") if file.name != ".lock")


def test_what_another_has_claimed_is_left_to_it_and_waited_for(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    is_alone = threading.Event()

    def report(graphs: object, num_workers: int) -> None:
        if num_workers == 0:
            is_alone.set()

    compiler = compiler_of(tmp_path / "set", report)
    other = SetFolder.open(tmp_path / "set")
    release = other.claim(NAME)
    assert release is not None
    with running(compiler) as thread:
        assert is_alone.wait(600)
        was_running = thread.is_alive()
        traced = list(tracer.traced)
        other.publish(NAME, b"theirs", key={"kind": NAME}, seconds=2.0, peak_bytes=5)
        release()
        thread.join(600)
        assert not thread.is_alive()

    assert was_running
    assert sorted(traced) == sorted({*GRAPHS} - {NAME})
    assert tracer.traced == traced
    assert states(compiler) == {**dict.fromkeys(GRAPHS, State.DONE), NAME: State.THERE}
    assert other.read(NAME) == b"theirs"
    assert hidden_files(tmp_path / "set") == []


def test_no_worker_starts_while_others_have_claimed_all_that_is_missing(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    reported: list[int] = []
    is_waiting = threading.Event()

    def report(graphs: object, num_workers: int) -> None:
        reported.append(num_workers)
        if len(reported) == 3:
            is_waiting.set()

    compiler = compiler_of(tmp_path / "set", report)
    releases = [take_claim(tmp_path / "set", name) for name in GRAPHS]
    with running(compiler) as thread:
        assert is_waiting.wait(600)
        compiler.stop()
        thread.join(600)
        assert not thread.is_alive()

    assert set(reported) == {0}
    assert tracer.traced == []
    assert states(compiler) == dict.fromkeys(GRAPHS, State.WAITING)
    for release in releases:
        assert release is not None
        release()


def test_a_claim_that_ends_without_a_graph_is_taken_over(
    tmp_path: Path, tracer: type[FakeTracer]
) -> None:
    release = []

    def report(graphs: object, num_workers: int) -> None:
        if num_workers == 0 and release:
            release.pop()()

    compiler = compiler_of(tmp_path / "set", report)
    claim = take_claim(tmp_path / "set", NAME)
    assert claim is not None
    release.append(claim)

    compiler.run(2)

    assert tracer.traced[-1] == NAME
    assert states(compiler) == dict.fromkeys(GRAPHS, State.DONE)
    assert hidden_files(tmp_path / "set") == []


@pytest.mark.parametrize("is_new", [True, False])
def test_what_others_fail_meanwhile_has_failed_and_what_they_failed_before_is_tried(
    tmp_path: Path, tracer: type[FakeTracer], is_new: bool
) -> None:
    compiler = compiler_of(tmp_path / "set")
    other = SetFolder.open(tmp_path / "set")

    def fail() -> None:
        other.fail(NAME, "RuntimeError: theirs\nmore", key={"kind": NAME}, seconds=2.0)

    if is_new:
        steer(tracer, **{GRAPHS[0]: fail})
    else:
        fail()
    compiler.run(1)

    assert (NAME not in tracer.traced) is is_new
    assert compiler.graphs[1].state is (State.FAILED if is_new else State.DONE)
    assert compiler.graphs[1].error == ("RuntimeError: theirs" if is_new else "")


def test_a_graph_is_claimed_from_before_it_is_traced_until_it_is_published(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "set"
    claimed: list[str] = []

    def note(name: str) -> None:
        if take_claim(path, name) is None:
            claimed.append(name)

    def note_and_refuse_one(name: str) -> None:
        note(name)
        if name == NAME:
            raise RuntimeError("refused")

    publish, fail = SetFolder.publish, SetFolder.fail

    def note_and_publish(folder: SetFolder, name: str, *arguments: bytes, **facts: object) -> None:
        publish(folder, name, *arguments, **facts)  # type: ignore[arg-type]
        note(name)

    def note_and_fail(folder: SetFolder, name: str, *arguments: str, **facts: object) -> None:
        fail(folder, name, *arguments, **facts)  # type: ignore[arg-type]
        note(name)

    monkeypatch.setattr(SetFolder, "publish", note_and_publish)
    monkeypatch.setattr(SetFolder, "fail", note_and_fail)
    tracer.act = staticmethod(note_and_refuse_one)
    compiler_of(path).run(1)

    assert claimed == [name for name in GRAPHS for _ in range(2)]
    assert hidden_files(path) == []


@pytest.mark.parametrize("how", ["killed", "full", "interrupted"])
def test_no_claim_is_left_however_work_ends(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    def end(name: str) -> None:
        if how == "killed":
            raise SystemExit(-9)

    def publish(*arguments: object, **facts: object) -> None:
        raise KeyboardInterrupt if how == "interrupted" else OSError("No space left on device")

    tracer.act = staticmethod(end)
    monkeypatch.setattr(SetFolder, "publish", publish)
    compiler = compiler_of(tmp_path / "set")
    if how == "killed":
        compiler.run(2)
    else:
        with pytest.raises((KeyboardInterrupt, OSError)):
            compiler.run(2)

    assert hidden_files(tmp_path / "set") == []
    assert all(take_claim(tmp_path / "set", name) for name in GRAPHS)


@contextmanager
def stubs(path: Path, log: Path, *acts: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Start processes that compile the set, one for each act, and wait until all are ready."""
    log.touch()
    with ExitStack() as stack:
        started = [
            subprocess.Popen(
                [sys.executable, stub_compiler.__file__, str(path), str(log), act],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for act in acts
        ]
        for process in started:
            stack.enter_context(process)
            stack.callback(process.kill)
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield started


def go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def look(path: Path, seen: dict[str, bytes]) -> None:
    """Read all that a set lists, as it must be at any time; what was seen before stays."""
    if (path / MANIFEST).exists():
        folder = SetFolder.open(path)
        found = {name: folder.read(name) for name in folder.manifest.graphs}
        assert seen.items() <= found.items()
        assert folder.verify() == []
        seen.update(found)


def check_stub_set(path: Path) -> None:
    folder = SetFolder.open(path)
    assert {name: folder.read(name) for name in folder.manifest.graphs} == {
        name: f"trace of {name}\n".encode() * 1000 for name in stub_compiler.GRAPHS
    }
    assert folder.verify() == []
    assert hidden_files(path) == []


def test_e06_four_processes_trace_each_graph_of_one_set_once(tmp_path: Path) -> None:
    """E06: a slow stub logs its calls; a reader looks at the set all the while.

    The last graph is not made before the reader has seen another.
    """
    path, log = tmp_path / "set", tmp_path / "log"
    seen: dict[str, bytes] = {}
    num_looks = 0
    with stubs(path, log, *[f"hold {stub_compiler.GRAPHS[-1]}"] * 4) as processes:
        for process in processes:
            go(process)
        while any(process.poll() is None for process in processes):
            look(path, seen)
            time.sleep(PAUSE_S)
            num_looks += 0 < len(seen) < len(stub_compiler.GRAPHS)
            if seen:
                (tmp_path / "log.go_on").touch()
        ends = [process.communicate()[0].split() for process in processes]

    traced = [line.split()[1] for line in log.read_text().splitlines()]
    assert sorted(traced) == sorted(stub_compiler.GRAPHS)
    assert [process.returncode for process in processes] == [0] * 4
    assert {state for end in ends for state in end} <= {"done", "there"}
    assert sum(end.count("done") for end in ends) == len(stub_compiler.GRAPHS)
    assert num_looks > 0, "the reader saw complete sets only"
    check_stub_set(path)


def test_e06_what_a_killed_process_had_claimed_is_traced_by_another(tmp_path: Path) -> None:
    path, log = tmp_path / "set", tmp_path / "log"
    name = stub_compiler.GRAPHS[0]
    with stubs(path, log, f"hang {name}", "work") as (hung, other):
        go(hung)
        seen: dict[str, bytes] = {}
        while f" {name}\n" not in log.read_text() or not seen:  # else the other compiles all
            assert hung.poll() is None
            look(path, seen)
            time.sleep(PAUSE_S)
        go(other)
        while len(SetFolder.open(path).manifest.graphs) < len(stub_compiler.GRAPHS) - 1:
            assert other.poll() is None
            time.sleep(PAUSE_S)
        hung.kill()
        end = other.communicate()[0].split()

    traced = [line.split() for line in log.read_text().splitlines()]
    by_killed = [name for pid, name in traced if pid == str(hung.pid)]
    by_other = [name for pid, name in traced if pid == str(other.pid)]
    assert other.returncode == 0
    assert {*end} == {"done", "there"}
    assert name in by_killed
    assert by_other[-1] == name
    assert len(traced) == len(stub_compiler.GRAPHS) + 1
    check_stub_set(path)
