"""``noria compile`` onto full and read-only disks, with small file systems in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import command_disks
import pytest
from set_disks import UNSHARE, may_mount

NO_SPACE, IS_READ_ONLY = "No space left on device", "Read-only file system"


def met_on(folder: Path, *kinds: str) -> dict[str, Any]:
    if not may_mount():
        pytest.skip("needs the right to mount")
    done = subprocess.run(
        [*UNSHARE, sys.executable, command_disks.__file__, str(folder), *kinds],
        capture_output=True,
        timeout=600,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process met on disks of three kinds."""
    return met_on(tmp_path_factory.mktemp("disks"), "full", "full_of_more", "read_only")


def is_one_line(result: dict[str, Any], ending: str) -> bool:
    """Tell whether a command was refused with one line that ends so, and printed nothing else."""
    found = result["status"], result["begins"], result["lines"], result["stdout"]
    return found == (2, ["Error: "], [ending], "")


def test_e08_a_first_run_onto_a_full_disk_is_one_line_and_the_next_completes(
    met: dict[str, Any],
) -> None:
    """E08: with every number of free pages up to that of a whole set."""
    *refused, done = met["full"]

    assert all(is_one_line(one["result"], NO_SPACE) for one in refused)
    assert done["result"]["status"] == 0
    assert sorted({len(one["graphs"]) for one in met["full"]}) == [0, 1, 2, 3, 4]
    assert [one["problems"] for one in met["full"]] == [[]] * len(met["full"])
    assert [one["after"] for one in met["full"]] == [[0, 0]] * len(met["full"])
    assert all(one["contents"] == done["contents"] for one in refused)


def test_e08_an_engine_never_starts_from_what_a_full_disk_has_left_of_a_set(
    met: dict[str, Any],
) -> None:
    *refused, _ = met["full"]

    endings = ("it has no manifest.json", "run noria compile")
    assert len(refused) > 10
    assert all(any(is_one_line(one["generate"], end) for end in endings) for one in refused)


def test_e08_more_graphs_on_a_full_disk_are_one_line_and_the_set_stays(
    met: dict[str, Any],
) -> None:
    """E08: what is there already needs no space."""
    *refused, done = met["full_of_more"]

    assert all(is_one_line(one["result"], NO_SPACE) for one in refused)
    assert len(refused) > 2
    assert done["result"]["status"] == 0
    for one in met["full_of_more"]:
        assert (one["there"], one["same"], one["problems"]) == (0, True, [])
        assert one["after"] == [0, 0]
        assert one["contents"] == done["contents"]


def test_e08_a_read_only_disk_is_one_line_and_its_set_runs(met: dict[str, Any]) -> None:
    """E08: an engine only reads; it warns of nothing. Neither does who compiles a whole set."""
    found = met["read_only"]

    more, other, generated = found["results"]
    assert is_one_line(more, IS_READ_ONLY)
    assert is_one_line(other, IS_READ_ONLY)
    assert is_one_line(generated, "run noria compile")
    assert found["again"] == 0
    assert (found["verify"], found["same"], found["is_as_before"]) == (0, True, True)
    assert (found["after"], found["last"]) == ([0, 0], 0)


@pytest.mark.long
def test_e08_worker_processes_end_when_the_disk_is_full(tmp_path: Path) -> None:
    """E08: the command does not end before them."""
    found = met_on(tmp_path, "with_processes")["with_processes"]

    assert found["status"] == 2
    assert found["last"].endswith(NO_SPACE)
    assert found["problems"] == []
