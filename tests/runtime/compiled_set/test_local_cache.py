"""The local cache of sets: what is listed, found and of no use."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from small_sets import small_set

from noria.runtime.backends import load_kernels
from noria.runtime.cli import main
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.identity import code_key
from noria.runtime.compiled_set.local_cache import (
    DAY_S,
    cached_sets,
    find_set,
    remove_leftovers_of,
    remove_set,
    sets_folder,
    useless,
)
from noria.runtime.errors import SetError

AA, BB, ABC, ABD = (start.ljust(64, "0") for start in ("aa", "bb", "abc", "abd"))


def current_set(path: Path) -> SetFolder:
    """Make a set as this version makes them."""
    key = {"backend": "reference", "target": None, **code_key(load_kernels("reference", None))}
    return SetFolder.prepare(path, key=key, num_blocks=[9])


def reason_of(path: Path, max_age_days: float | None = None) -> str | None:
    return useless(find_set(path.parent, path.name), max_age_days=max_age_days)


def test_a_missing_folder_has_no_sets(tmp_path: Path) -> None:
    assert cached_sets(tmp_path / "none") == []


def test_sets_are_listed_by_age_with_their_sizes(tmp_path: Path) -> None:
    small_set(tmp_path / AA)
    small_set(tmp_path / BB)
    os.utime(tmp_path / AA / "manifest.json", (0, time.time() - 3 * DAY_S))

    young, old = cached_sets(tmp_path)

    assert [young.key, old.key] == [BB, AA]
    assert old.age_s == pytest.approx(3 * DAY_S, abs=60)
    assert young.num_bytes == sum(f.stat().st_size for f in (tmp_path / BB).rglob("*.*"))
    assert young.model == "tiny"


def test_a_set_is_found_by_the_beginning_of_its_key(tmp_path: Path) -> None:
    current_set(tmp_path / ABC)
    current_set(tmp_path / ABD)

    assert find_set(tmp_path, "abd").key == ABD
    with pytest.raises(SetError, match=r"begins the keys of 2 sets: abc0+, abd0+$"):
        find_set(tmp_path, "ab")
    for key in ("x", "", "../" + tmp_path.name):
        with pytest.raises(SetError, match="no set whose key begins with"):
            find_set(tmp_path, key)


def test_what_this_version_made_is_of_use_until_it_is_old(tmp_path: Path) -> None:
    current_set(tmp_path / AA)
    os.utime(tmp_path / AA / "manifest.json", (0, time.time() - 3 * DAY_S))

    assert reason_of(tmp_path / AA) is None
    assert reason_of(tmp_path / AA, 4) is None
    assert reason_of(tmp_path / AA, 2) == "unchanged for 3 days"


@pytest.mark.parametrize("field", ["torch", "kernels", "runtime_sources"])
def test_what_other_code_made_is_of_no_use(tmp_path: Path, field: str) -> None:
    key = {**current_set(tmp_path / AA).manifest.key, field: "another"}
    SetFolder.prepare(tmp_path / BB, key=key, num_blocks=[9])

    reason = reason_of(tmp_path / BB)

    assert reason == "made by another version of the code, of torch or on another machine"


def test_a_damaged_set_is_of_no_use(tmp_path: Path) -> None:
    """E05: a graph that is cut short, then no manifest at all."""
    current_set(tmp_path / AA).publish("g", b"data", key={}, seconds=1, peak_bytes=1)
    (tmp_path / AA / "graphs" / "g.graph").write_bytes(b"da")
    current_set(tmp_path / BB)
    (tmp_path / BB / "manifest.json").unlink()

    assert reason_of(tmp_path / AA) == "damaged"
    assert reason_of(tmp_path / BB) == "damaged"


@pytest.mark.parametrize("name", ["Documents", "0123456789ab", "A" * 64, f".removed-{AA[:-1]}"])
def test_folders_of_others_are_no_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Who names a folder that holds other things loses none of them."""
    (tmp_path / name / "deeper").mkdir(parents=True)
    (tmp_path / name / "deeper" / "notes.txt").write_text("mine")
    (tmp_path / AA).write_text("mine")
    current_set(tmp_path / BB)
    monkeypatch.setenv("NORIA_SETS", str(tmp_path))

    keys = [one.key for one in cached_sets(tmp_path)]
    result = CliRunner().invoke(main, ["cache", "gc", "--all"])

    assert keys == [BB]
    assert result.exit_code == 0
    assert {path.name for path in tmp_path.iterdir()} == {name, AA}
    assert (tmp_path / name / "deeper" / "notes.txt").read_text() == "mine"


def test_a_folder_that_cannot_be_read_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / ("x" * 300)))

    results = [CliRunner().invoke(main, ["cache", *one]) for one in (["ls"], ["gc"], ["show", "a"])]

    assert [result.exit_code for result in results] == [2, 2, 2]
    assert all(len(result.stderr.splitlines()) == 1 for result in results)
    assert all("cannot be read: File name too long" in result.stderr for result in results)


def test_a_set_that_vanishes_while_it_is_looked_at_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E08: another process removes sets, or publishes what it has staged, at any moment."""
    small_set(tmp_path / AA)
    walk = os.walk

    def vanishing(path: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        found = list(walk(path))
        shutil.rmtree(path)
        yield from found

    monkeypatch.setattr(os, "walk", vanishing)
    (one,) = cached_sets(tmp_path)
    remove_set(one.path)

    assert one.manifest is None
    assert one.num_bytes == 0


def test_a_set_of_a_newer_format_stays(tmp_path: Path) -> None:
    """Another version of Noria, which shares the cache, reads it."""
    path = tmp_path / AA
    current_set(path)
    newer = path.joinpath("manifest.json").read_bytes().replace(b'"format": 1', b'"format": 99')
    body = newer[: newer.rindex(b',\n "sha256"')]
    digest = hashlib.sha256(body).hexdigest().encode()
    (path / "manifest.json").write_bytes(body + b',\n "sha256": "' + digest + b'"\n}\n')

    assert reason_of(path) is None


def test_a_set_vanishes_at_once_and_what_killed_removals_left_goes_later(tmp_path: Path) -> None:
    current_set(tmp_path / AA)
    (tmp_path / f".removed-{BB}" / "graphs").mkdir(parents=True)

    remove_set(tmp_path / AA)
    remove_leftovers_of(tmp_path)

    assert list(tmp_path.iterdir()) == []


def test_a_set_that_is_written_is_removed_after_that(tmp_path: Path) -> None:
    """E08: nobody deletes a set under a writer's hands."""
    folder = current_set(tmp_path / AA)
    remover = threading.Thread(target=remove_set, args=(tmp_path / AA,))
    with folder.locked():
        remover.start()
        remover.join(0.3)
        was_there = (tmp_path / AA / "manifest.json").exists()
    remover.join(600)

    assert was_there
    assert not (tmp_path / AA).exists()


def test_local_sets_are_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    found = []
    for named in ("", "/sets", "~/sets", None):
        if named is None:
            monkeypatch.delenv("NORIA_SETS")
        else:
            monkeypatch.setenv("NORIA_SETS", named)
        found.append(sets_folder())

    home = tmp_path / "home"
    assert found == [None, Path("/sets"), home / "sets", tmp_path / "noria" / "sets"]


def test_who_has_no_home_has_no_local_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("NORIA_SETS")

    assert sets_folder() is None
    assert CliRunner().invoke(main, ["cache", "ls"]).exit_code == 2
