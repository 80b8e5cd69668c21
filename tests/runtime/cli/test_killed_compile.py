"""``noria compile`` that is killed: what is listed is whole, nobody is left, a rerun completes."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from command_at_point import stopped_at
from command_forks import FOUR_GRAPHS, Commands, Job
from sessions import members, wait_until_ended
from set_faults import FAULT_POINTS
from small_sets import files_of

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.errors import DamagedFile

NUM_RANDOM = 20
FAILED, REPLACED = "decode_s2_c32", "copy_blocks_g0_s2"
FROM_NOTHING = ("folder.made", "lock.held", *(f for f in FAULT_POINTS if f.startswith("manifest.")))
ONLY_IN_OLDER = ("unlisting", "leftover")
"""Kinds of points that the first run into a folder does not reach."""
REAL = ("file.half_written:5", "manifest.renamed:6")
"""Points at which worker processes are there: from the first graph on."""
NUM_BEFORE = {"file": 3, "manifest": 5}
"""Times that a kind of points is reached before."""
MORE_REAL = tuple(
    f"{point}:{num + 1}"
    for kind, num in NUM_BEFORE.items()
    for point in FAULT_POINTS
    if point.startswith(f"{kind}.") and f"{point}:{num + 1}" not in REAL
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration of four graphs."""
    path = tmp_path_factory.mktemp("tiny") / "tiny.yaml"
    path.write_text(yaml.safe_dump(FOUR_GRAPHS))
    return path


@pytest.fixture(scope="module")
def whole(tiny: Path) -> Path:
    """A set that nobody was killed over, of worker processes."""
    path = tiny.parent / "whole"
    command = [sys.executable, "-m", "noria.runtime", "compile", str(tiny), "-o", str(path)]
    subprocess.run([*command, "--workers", "2"], check=True, capture_output=True, timeout=600)
    assert len(SetFolder.open(path).manifest.graphs) == 4
    return path


@pytest.fixture(scope="module")
def older(whole: Path) -> Path:
    """The set as an older run has left it: other files, a failed and another graph, half a file."""
    path = shutil.copytree(whole, whole.parent / "older")
    folder = SetFolder.open(path)
    folder.publish_file("plan.json", b"an older plan")
    folder.publish_file("config.yaml", b"an older configuration")
    folder.publish(REPLACED, b"an older graph", key={"version": 0}, seconds=1, peak_bytes=1)
    key = folder.manifest.graphs[FAILED].key
    with folder.locked():
        (path / "graphs" / f"{FAILED}.graph").unlink()
        folder.fail(FAILED, "an older error", key=key, seconds=1)
    (path / "graphs" / ".staged-file-x.graph").write_bytes(b"hal")
    return path


@pytest.fixture(scope="module")
def commands(tiny: Path) -> Iterator[Commands]:
    with Commands(tiny) as forks:
        yield forks


class Killed:
    """A set in the making, whose makers are killed."""

    def __init__(self, commands: Commands, tiny: Path, whole: Path, older: Path, path: Path):
        self.commands, self.path = commands, path
        self.arguments = ("compile", tiny, "-o", path, "--workers", 2)
        self.expected = {**files_of(whole), MANIFEST: b""}
        self.known = {*self.expected.items(), *files_of(older).items()}

    def kill(self, **where: Any) -> None:
        """Let a run be killed, and see that it was, and that the set is whole."""
        end = self.commands.run(*self.arguments, folder=str(self.path), **where)
        assert end.status == -signal.SIGKILL, end.output
        self.check_listed()

    def check_listed(self) -> None:
        """Assert that all that is listed is there, as it was written; all else is left over."""
        if not (self.path / MANIFEST).exists():
            with pytest.raises(DamagedFile, match="is no compiled set"):
                SetFolder.open(self.path)
            return
        folder = SetFolder.open(self.path)
        listed = {(name, folder.read_file(name)) for name in folder.manifest.all_files}
        assert listed <= self.known
        assert [line for line in folder.verify() if "left over" not in line] == [
            line for line in folder.verify() if "is not listed" in line
        ]

    def check_rerun(self) -> None:
        """Assert that another run makes the set that there would be without any kill."""
        end = self.commands.run(*self.arguments)
        assert end.status == 0, end.output
        assert {**files_of(self.path), MANIFEST: b""} == self.expected
        verified = self.commands.run("verify", self.path)
        assert (verified.status, verified.output[:3]) == (0, "OK "), verified.output


@pytest.fixture
def new(commands: Commands, tiny: Path, whole: Path, older: Path, tmp_path: Path) -> Killed:
    """A set that is not begun."""
    return Killed(commands, tiny, whole, older, tmp_path / "set")


@pytest.fixture
def renewed(new: Killed, older: Path) -> Killed:
    """An older set."""
    shutil.copytree(older, new.path)
    return new


def test_every_fault_point_is_reached(new: Killed, older: Path) -> None:
    first = new.commands.run(*new.arguments, folder=str(new.path))
    shutil.rmtree(new.path)
    shutil.copytree(older, new.path)
    again = new.commands.run(*new.arguments, folder=str(new.path))

    assert {*first.points, *again.points} == set(FAULT_POINTS)
    assert {p for p in FAULT_POINTS if p not in first.points} == {
        p for p in FAULT_POINTS if p.split(".")[0] in ONLY_IN_OLDER
    }
    assert min(first.num_events, again.num_events) > NUM_RANDOM


@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p != "folder.made"])
def test_a_run_that_is_killed_at_a_point_leaves_an_older_set_whole(
    renewed: Killed, point: str
) -> None:
    renewed.kill(point=point)

    renewed.check_rerun()


@pytest.mark.parametrize("point", FROM_NOTHING)
def test_a_first_run_that_is_killed_at_a_point_leaves_room_for_the_next(
    new: Killed, point: str
) -> None:
    new.kill(point=point)

    new.check_rerun()


@pytest.mark.long
@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p != "folder.made"])
@pytest.mark.parametrize("is_older", [True, False])
def test_runs_that_are_killed_wherever_a_point_is_reached(
    new: Killed, older: Path, point: str, is_older: bool
) -> None:
    def begin() -> None:
        shutil.rmtree(new.path, ignore_errors=True)
        if is_older:
            shutil.copytree(older, new.path)

    begin()
    num_times = new.commands.run(*new.arguments).points.get(point, 0)
    for number in range(num_times):
        begin()
        new.kill(point=f"{point}:{number + 1}")
        new.check_rerun()


@pytest.mark.parametrize("is_older", [True, False])
def test_runs_that_are_killed_at_random_events_leave_whole_sets(
    new: Killed, older: Path, is_older: bool
) -> None:
    """An event is any that Python tells of a file in the folder: opened, renamed, removed..."""
    moments = random.Random(17)
    if is_older:
        shutil.copytree(older, new.path)
    num_events = new.commands.run(*new.arguments, folder=str(new.path)).num_events
    for event in moments.sample(range(1, num_events + 1), NUM_RANDOM // 2):
        shutil.rmtree(new.path)
        if is_older:
            shutil.copytree(older, new.path)
        new.kill(event=event)
        new.check_rerun()


def test_runs_that_are_killed_at_any_moment_leave_whole_sets(new: Killed, older: Path) -> None:
    """Each meets what the one before has left; the moment is a share of a whole run's time."""
    moments, num_killed = random.Random(18), 0
    seconds = new.commands.run(*new.arguments).seconds
    for number in range(10 * NUM_RANDOM):
        end = new.commands.run(*new.arguments, after_s=seconds * moments.random())
        assert end.status in (0, -signal.SIGKILL), end.output
        new.check_listed()
        if end.status == 0:  # it was faster than the one before, or had little left to do
            seconds = min(seconds, end.seconds)
            shutil.rmtree(new.path)
            if number % 2:
                shutil.copytree(older, new.path)
            continue
        num_killed += 1
        if num_killed == NUM_RANDOM:
            break

    assert num_killed == NUM_RANDOM
    new.check_rerun()


@pytest.mark.parametrize("num_runs", [2, 4])
def test_e06_runs_at_once_end_with_one_whole_set(new: Killed, num_runs: int) -> None:
    """E06: all of them succeed, and nothing of theirs is left in the folder."""
    for _ in range(5):
        jobs = [Job([str(one) for one in new.arguments])] * num_runs
        ends = new.commands.run_all(jobs)

        assert [end.status for end in ends] == [0] * num_runs, ends
        new.check_rerun()
        shutil.rmtree(new.path)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(
    "point",
    [
        *REAL,
        *(pytest.param(point, marks=pytest.mark.long) for point in MORE_REAL),
    ],
)
def test_workers_of_a_run_that_is_killed_end_too(new: Killed, point: str) -> None:
    process = stopped_at(point, new.arguments)
    workers = members(process.pid) - {process.pid}

    process.kill()
    process.wait()

    assert workers
    wait_until_ended(process.pid)
    new.check_listed()
    new.check_rerun()


@pytest.mark.long
def test_runs_with_worker_processes_that_are_killed_at_any_moment(new: Killed) -> None:
    command = [sys.executable, "-m", "noria.runtime", *map(str, new.arguments)]
    moments, start = random.Random(19), time.monotonic()
    subprocess.run(command, check=True, capture_output=True)
    seconds = time.monotonic() - start
    for _ in range(NUM_RANDOM):
        shutil.rmtree(new.path, ignore_errors=True)
        with subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL
        ) as process:
            time.sleep(seconds * moments.random())
            process.kill()
        wait_until_ended(process.pid)
        new.check_listed()
        new.check_rerun()
