"""Several processes that compile one set, and readers that look while they do."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import set_writer
from set_writer import NAMES
from small_sets import graph_key

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST

NUM_ROUNDS = 10
MAX_SECONDS = 600


class Reader:
    """Looks at a set again and again, and asserts that what is listed is whole and stays."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen: dict[str, bytes] = {}
        self.num_looks = 0

    def look(self) -> None:
        if not (self.path / MANIFEST).exists():
            assert self.num_looks == 0
            return
        folder = SetFolder.open(self.path)
        found = {name: folder.read(name) for name in folder.manifest.graphs}
        assert self.seen.items() <= found.items()
        assert folder.verify() == []
        self.seen = found
        self.num_looks += 1


def start(stack: ExitStack, *, holds_lock: bool) -> subprocess.Popen[str]:
    publisher = subprocess.Popen(
        [sys.executable, set_writer.__file__, "rounds", str(int(holds_lock))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(publisher.wait, timeout=600)
    stack.callback(publisher.communicate)
    assert publisher.stdout is not None
    assert publisher.stdout.readline() == "ready\n"
    return publisher


def run_round(publishers: list[subprocess.Popen[str]], path: Path) -> tuple[list[int], Reader]:
    """Let all publish the set in ``path`` at once; return how many graphs each compiled."""
    reader = Reader(path)
    for publisher in publishers:
        assert publisher.stdin is not None
        publisher.stdin.write(f"{path}\n")
    for publisher in publishers:
        assert publisher.stdin is not None
        publisher.stdin.flush()
    end = time.monotonic() + MAX_SECONDS
    while len(reader.seen) < len(NAMES):
        reader.look()
        assert time.monotonic() < end, reader.seen.keys()
        assert all(publisher.poll() is None for publisher in publishers)
    answers = [publisher.stdout.readline() for publisher in publishers if publisher.stdout]
    reader.look()
    return [int(answer) for answer in answers], reader


@pytest.mark.parametrize("num_publishers", [2, 4])
def test_e06_publishers_that_hold_the_lock_compile_each_graph_once(
    tmp_path: Path, num_publishers: int
) -> None:
    with ExitStack() as stack:
        publishers = [start(stack, holds_lock=True) for _ in range(num_publishers)]
        for number in range(NUM_ROUNDS):
            path = tmp_path / f"set_{number}"
            num_compiled, _ = run_round(publishers, path)

            assert sum(num_compiled) == len(NAMES)
            check_complete(path)


@pytest.mark.parametrize("num_publishers", [2, 4])
def test_e06_publishers_that_hold_no_lock_end_with_one_whole_set(
    tmp_path: Path, num_publishers: int
) -> None:
    """What one has published stays, though others have compiled it to other bytes."""
    num_looks = 0
    with ExitStack() as stack:
        publishers = [start(stack, holds_lock=False) for _ in range(num_publishers)]
        for number in range(NUM_ROUNDS):
            path = tmp_path / f"set_{number}"
            num_compiled, reader = run_round(publishers, path)

            assert len(NAMES) <= sum(num_compiled) <= num_publishers * len(NAMES)
            check_complete(path)
            num_looks += reader.num_looks

    assert num_looks > NUM_ROUNDS, "the reader saw complete sets only"


def check_complete(path: Path) -> None:
    folder = SetFolder.open(path)
    assert set(folder.manifest.graphs) == set(NAMES)
    assert all(folder.has(name, graph_key(name)) for name in NAMES)
    assert folder.verify() == []
    assert not [file for file in path.rglob("*") if ".staged" in file.name]
