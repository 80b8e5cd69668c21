"""Writers that are killed: what is listed is whole, and the next writer completes the set."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import set_faults
import set_writer
from set_faults import FAULT_POINTS, VARIABLE
from set_writer import FAILED, NAMES, NEWEST, graph_bytes

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.errors import DamagedFile

NUM_RANDOM = 20
ONCE = ("folder", "leftover")
"""Kinds of fault points that a writer reaches only once or twice."""
LATER = 4
"""Times that a point is reached before the second kill there."""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a set of an older version, with a graph that failed."""
    path = tmp_path_factory.mktemp("older") / "set"
    set_writer.write(path, NEWEST - 1)
    return path


def start(command: str, path: Path, fault: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, set_writer.__file__, command, str(path)],
        env={**os.environ, VARIABLE: fault},
        stdout=subprocess.PIPE,
    )


def kill_at(fault: str, path: Path) -> None:
    """Let a writer end at a fault point, and see that it did."""
    with start("write", path, fault) as writer:
        writer.wait(timeout=600)
    assert writer.returncode == -signal.SIGKILL


def check_listed(path: Path) -> set[str]:
    """Assert that all that the manifest lists is whole and as one writer wrote it."""
    folder = SetFolder.open(path)
    for file in folder.manifest.all_files:
        folder.read_file(file)
    for name, graph in folder.manifest.graphs.items():
        if graph.status == "done":
            assert folder.read(name) in {graph_bytes(name, v) for v in range(1, NEWEST + 1)}
    return set(folder.manifest.graphs)


def check_rerun(path: Path) -> None:
    """Assert that another writer completes the set and leaves nothing else in the folder."""
    set_writer.write(path, NEWEST)

    folder = SetFolder.open(path)
    assert folder.verify() == []
    assert {name: folder.read(name) for name in folder.manifest.graphs} == {
        name: graph_bytes(name, NEWEST) for name in (*NAMES, FAILED)
    }
    assert folder.read_file("plan.json") == f"plan {NEWEST}".encode()


def check_kill_in_older(path: Path) -> None:
    """Assert that at most one graph is missing of the set that was there, then complete it."""
    assert len({*NAMES, FAILED} - check_listed(path)) <= 1
    check_rerun(path)


def test_these_are_all_the_fault_points(
    older: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    for module in set_faults.MODULES:
        monkeypatch.setattr(module, "fault_point", module.fault_point)

    reached = set_faults.install()
    set_writer.write(tmp_path / "new", NEWEST)
    set_writer.write(shutil.copytree(older, tmp_path / "set"), NEWEST)

    assert set(reached) == set(FAULT_POINTS)
    assert len(FAULT_POINTS) >= 10
    assert all(reached[p] > LATER for p in FAULT_POINTS if p.split(".")[0] not in ONCE)


@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p != "folder.made"])
def test_a_writer_that_is_killed_at_a_point_leaves_a_whole_set(
    older: Path, tmp_path: Path, point: str
) -> None:
    path = shutil.copytree(older, tmp_path / "set")

    kill_at(point, path)

    check_kill_in_older(path)


@pytest.mark.parametrize(
    "point",
    ["folder.made", "lock.held", *(f"manifest.{where}" for where in ("half_written", "renamed"))],
)
def test_a_writer_that_is_killed_before_there_is_a_set_leaves_room_for_one(
    tmp_path: Path, point: str
) -> None:
    path = tmp_path / "set"

    kill_at(point, path)

    if (path / MANIFEST).exists():
        assert check_listed(path) == set()
    else:
        with pytest.raises(DamagedFile, match="is no compiled set"):
            SetFolder.open(path)
    check_rerun(path)


@pytest.mark.long
@pytest.mark.parametrize("point", [p for p in FAULT_POINTS if p.split(".")[0] not in ONCE])
@pytest.mark.parametrize("count", [2, 3, LATER])
def test_a_writer_that_is_killed_later_leaves_a_whole_set(
    older: Path, tmp_path: Path, point: str, count: int
) -> None:
    path = shutil.copytree(older, tmp_path / "set")

    kill_at(f"{point}:{count}", path)

    check_kill_in_older(path)


def test_a_writer_that_is_killed_twice_in_a_row_leaves_a_whole_set(
    older: Path, tmp_path: Path
) -> None:
    """What is in the way of the second is what the first has left."""
    path = shutil.copytree(older, tmp_path / "set")

    kill_at("file.half_written:2", path)
    kill_at("leftover.removed", path)
    kill_at("file.renamed:2", path)

    check_kill_in_older(path)


def test_writers_that_are_killed_at_any_moment_leave_a_whole_set(
    older: Path, tmp_path: Path
) -> None:
    moments = random.Random(11)
    path = shutil.copytree(older, tmp_path / "set")
    listed = check_listed(path)
    for _ in range(NUM_RANDOM):
        with start("endless", path) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            time.sleep(moments.uniform(0, 0.15))
            writer.kill()

        before, listed = listed, check_listed(path)
        assert len(before - listed) <= 1

    check_rerun(path)


def test_the_lock_ends_with_its_holder(older: Path, tmp_path: Path) -> None:
    path = shutil.copytree(older, tmp_path / "set")
    kill_at("lock.held", path)

    with SetFolder.open(path).locked():
        assert (path / ".lock").exists()
