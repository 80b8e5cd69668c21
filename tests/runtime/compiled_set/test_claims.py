"""Claims on graphs: one holder, in whatever process, until it gives up, ends or is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_sets import begin, small_set

from noria.runtime.compiled_set import claims
from noria.runtime.compiled_set.bundle import write_bundle
from noria.runtime.compiled_set.claims import CLAIM, remove_free_claims, take_claim
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.errors import SetError

NAME = "decode_s8_c256"
HOLDER = """
import sys, time
from pathlib import Path
from noria.runtime.compiled_set.claims import take_claim
release = take_claim(Path(sys.argv[1]), sys.argv[2])
print(release is not None, flush=True)
sys.stdin.readline()
"""


def start_holder(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), NAME],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def claim_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob(".*") if path.name != ".lock")


def test_a_claim_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    release = take_claim(tmp_path, NAME)
    other = take_claim(tmp_path, "sampler_r8_greedy")
    refused = take_claim(tmp_path, NAME)
    assert release is not None
    assert other is not None
    assert refused is None

    release()
    again = take_claim(tmp_path, NAME)
    other()

    assert again is not None
    assert take_claim(tmp_path, NAME) is None
    assert claim_files(tmp_path) == [f"{CLAIM}{NAME}"]
    again()
    assert claim_files(tmp_path) == []


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_claim_ends_with_its_holder_however_that_ends(tmp_path: Path, is_killed: bool) -> None:
    with start_holder(tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        refused = take_claim(tmp_path, NAME)
        if is_killed:
            holder.kill()
    left = claim_files(tmp_path)
    release = take_claim(tmp_path, NAME)

    assert refused is None
    assert left == [f"{CLAIM}{NAME}"], "a file of nobody is in the way of the next"
    assert release is not None
    release()
    assert claim_files(tmp_path) == []


def test_a_claim_that_is_released_while_another_opens_its_file_passes_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file that the other has opened has no name any more: a lock of it claims nothing."""
    first = take_claim(tmp_path, NAME)
    assert first is not None
    lock = claims._lock
    releases = [first]

    def lock_late(number: int) -> bool:
        while releases:
            releases.pop()()
        return lock(number)

    monkeypatch.setattr(claims, "_lock", lock_late)
    second = take_claim(tmp_path, NAME)

    assert second is not None
    assert claim_files(tmp_path) == [f"{CLAIM}{NAME}"]
    assert take_claim(tmp_path, NAME) is None
    second()


def test_a_claim_is_part_of_no_set_and_no_bundle(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    write_bundle(folder, tmp_path / "before.tar")
    release = folder.claim(NAME)
    assert release is not None
    (folder.path / f"{CLAIM}of_a_dead_one").touch()

    problems = folder.verify()
    write_bundle(folder, tmp_path / "after.tar")

    assert problems == []
    assert (tmp_path / "after.tar").read_bytes() == (tmp_path / "before.tar").read_bytes()
    release()


def test_elsewhere_in_the_set_such_a_file_is_not_listed(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder.path / "graphs" / f"{CLAIM}x").touch()

    (problem,) = folder.verify()

    assert f"graphs/{CLAIM}x is not listed" in problem


def test_a_writer_removes_claims_of_the_dead_and_no_others(tmp_path: Path) -> None:
    folder = begin(tmp_path / "set")
    release = SetFolder.open(folder.path).claim(NAME)
    assert release is not None
    (folder.path / f"{CLAIM}of_a_dead_one").touch()

    with folder.locked():
        left = claim_files(folder.path)

    assert left == [f"{CLAIM}{NAME}"]
    assert folder.claim(NAME) is None
    release()


def test_claims_that_vanish_while_they_are_removed_are_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: [folder / f"{CLAIM}gone"])

    remove_free_claims(tmp_path)

    assert not (tmp_path / f"{CLAIM}gone").exists()


def test_a_folder_that_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    folder = begin(tmp_path / "set")
    folder.path.rename(tmp_path / "elsewhere")

    with pytest.raises(SetError, match=f"{CLAIM}{NAME} cannot be written: No such file"):
        folder.claim(NAME)


def test_a_release_leaves_the_claim_of_another_folder_in_its_place(tmp_path: Path) -> None:
    """A set can be removed and made again while somebody compiles it."""
    path = tmp_path / "set"
    release = begin(path).claim(NAME)
    path.rename(tmp_path / "elsewhere")
    of_the_new = begin(path).claim(NAME)
    assert release is not None
    assert of_the_new is not None

    release()

    assert claim_files(path) == [f"{CLAIM}{NAME}"]
    assert begin(path).claim(NAME) is None
    of_the_new()
