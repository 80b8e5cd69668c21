"""Writers that are stopped while they hold the lock of a set, as by SIGSTOP or a disk that hangs.

An engine waits for them for seconds and a command for minutes, and both say for whom. Pauses
between two tries are counted, not made.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import set_writer
from local_sets import warnings_in
from set_faults import FAULT_POINTS, VARIABLE
from set_writer import NEWEST
from small_sets import GRAPHS, KEY, NUM_BLOCKS, add_graph, begin, graph_key
from thread_workers import GRAPHS as NAMES
from thread_workers import FakeTracer, compiler_of

from noria.runtime.compiled_set import locking, workers
from noria.runtime.compiled_set.claims import take_claim
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.local_cache import remove_set
from noria.runtime.compiled_set.local_set import LocalSet
from noria.runtime.compiled_set.locking import COMMAND, ENGINE
from noria.runtime.errors import SetError

WRITER = f"""
import signal, sys
from pathlib import Path
import set_faults, set_writer
set_faults.install(signal.SIGSTOP)
set_writer.write(Path(sys.argv[1]), {NEWEST})
"""
UNLOCKED = "folder.made"
PENDING = [point for point in FAULT_POINTS if point != UNLOCKED]


class Pauses:
    """In the place of time.sleep: adds up the seconds, and may do something when there are many."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.acts: list[tuple[float, Callable[[], None]]] = []

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        while self.acts and self.seconds >= self.acts[0][0]:
            self.acts.pop(0)[1]()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> Pauses:
    made = Pauses()
    monkeypatch.setattr(locking, "time", SimpleNamespace(sleep=made.sleep))
    return made


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("older") / "set"
    set_writer.write(path, NEWEST - 1)
    return path


@contextmanager
def stopped_at(point: str, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have a writer that has stopped at a fault point; it is killed in the end."""
    search = os.pathsep.join([str(Path(set_writer.__file__).parent), *sys.path])
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)],
        env={**os.environ, VARIABLE: point, "PYTHONPATH": search},
    )
    with writer:
        _, status = os.waitpid(writer.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        try:
            yield writer
        finally:
            writer.kill()


def fill(store: LocalSet) -> None:
    for name, data in GRAPHS.items():
        add_graph(store, name, data)
    store.fail("late", "Error: no", key=graph_key("late"), seconds=1)
    store.record({"graphs": [*GRAPHS]})
    store.keep_file("notes.json", b"{}")
    with store.locked():
        assert store.claim("later") is not None


@pytest.mark.parametrize(
    ("point", "is_begun"),
    [*((point, True) for point in PENDING), ("lock.held", False), ("manifest.staged", False)],
)
def test_a_local_set_goes_on_without_a_writer_that_is_stopped(
    older: Path, tmp_path: Path, pauses: Pauses, caplog, point: str, is_begun: bool
) -> None:
    """Wherever it is stopped: the set is filled in memory, and one warning says who stopped."""
    path = tmp_path / "set"
    if is_begun:
        shutil.copytree(older, path)
    with stopped_at(point, path) as writer:
        store = LocalSet(path, key=KEY, num_blocks=NUM_BLOCKS)
        fill(store)

        assert {name: store.read(name) for name in GRAPHS} == GRAPHS
        assert all(store.has(name, graph_key(name)) for name in GRAPHS)
        (warning,) = warnings_in(caplog)
        assert f" s by process {writer.pid};" in warning
        assert warning.endswith("kept in memory only")
        assert store.problem is not None
        assert store.problem in warning
        assert ENGINE.limit_s <= pauses.seconds < 1.1 * ENGINE.limit_s

    again = LocalSet(path, key=KEY, num_blocks=NUM_BLOCKS)
    fill(again)
    assert again.problem is None
    set_writer.write(path, NEWEST)
    assert SetFolder.open(path).verify() == []


def test_a_whole_set_is_read_without_waiting_for_a_writer_that_is_stopped(
    older: Path, tmp_path: Path, pauses: Pauses, caplog
) -> None:
    path = shutil.copytree(older, tmp_path / "set")
    fill(LocalSet(path, key=KEY, num_blocks=NUM_BLOCKS))
    with stopped_at("file.written", path):
        store = LocalSet(path, key=KEY, num_blocks=NUM_BLOCKS)
        store.keep_file("notes.json", b"{}")
        store.publish_file("notes.json", b"{}")

        assert {name: store.read(name) for name in GRAPHS} == GRAPHS

    assert (pauses.seconds, warnings_in(caplog)) == (0, [])


WRITES: dict[str, Callable[[Path], object]] = {
    "prepare and publish": lambda path: add_graph(begin(path), "late", b"late"),
    "publish_file": lambda path: SetFolder.open(path).publish_file("plan.json", b"new"),
    "record": lambda path: SetFolder.open(path).record({"fact": 1}),
    "remove": remove_set,
}


@pytest.mark.parametrize("what", WRITES)
def test_a_command_waits_longer_and_says_for_whom(
    older: Path, tmp_path: Path, pauses: Pauses, caplog, what: str
) -> None:
    path = shutil.copytree(older, tmp_path / "set")
    with stopped_at("lock.held", path) as writer:

        def go_on() -> None:
            os.kill(writer.pid, signal.SIGCONT)
            assert writer.wait(600) == 0

        pauses.acts.append((2 * ENGINE.limit_s, go_on))
        WRITES[what](path)

    (warning,) = warnings_in(caplog)
    assert warning == f"{path}/.lock is locked by process {writer.pid}, which is waited for"
    assert pauses.seconds >= 2 * ENGINE.limit_s
    assert COMMAND.told_after_s < ENGINE.limit_s


@pytest.mark.parametrize("what", WRITES)
def test_no_command_waits_for_ever(older: Path, tmp_path: Path, pauses: Pauses, what: str) -> None:
    path = shutil.copytree(older, tmp_path / "set")
    with (
        stopped_at("lock.held", path) as writer,
        pytest.raises(SetError, match=rf"locked for \d+ s by process {writer.pid}"),
    ):
        WRITES[what](path)

    assert COMMAND.limit_s <= pauses.seconds < 1.1 * COMMAND.limit_s


@pytest.mark.parametrize("listing", ["", "1: FLOCK  ADVISORY  WRITE 1 00:00:0 0 EOF\n", None])
def test_a_holder_whom_the_system_does_not_name_is_another_process(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str | None
) -> None:
    listed = tmp_path / "locks"
    if listing is not None:
        listed.write_text(listing)
    monkeypatch.setattr(locking, "LISTED_LOCKS", listed)

    with locking.write_lock(older):
        assert locking.holder(older / locking.LOCK) == "another process"
    assert locking.holder(tmp_path / "nothing") == "another process"


def test_a_compiler_says_for_whose_graph_it_waits(
    tmp_path: Path, tracer: type[FakeTracer], monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """Once, when there is nothing else to do: who has claimed it may be stopped."""
    monkeypatch.setattr(workers, "POLL_S", 0.001)
    compiler = compiler_of(tmp_path / "set")
    releases = [take_claim(tmp_path / "set", name) for name in NAMES[:2]]
    wait, num_waits = compiler._is_stopped.wait, []

    def wait_or_stop(timeout: float | None = None) -> bool:
        num_waits.append(timeout)
        if len(num_waits) > 3 * workers.WAITS_UNTOLD:
            compiler.stop()
        return wait(timeout)

    monkeypatch.setattr(compiler._is_stopped, "wait", wait_or_stop)
    compiler.run(1)

    (warning,) = warnings_in(caplog)
    assert warning == (f"waiting for {NAMES[0]} and 1 more, which process {os.getpid()} compiles")
    for release in releases:
        assert release is not None
        release()
