from __future__ import annotations

import errno
import gzip
import os
import shutil
import tarfile
from pathlib import Path

import pytest
from small_sets import GRAPHS, add_graph, begin, contents, small_set

from noria.runtime.compiled_set.bundle import read_bundle, write_bundle
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.errors import DamagedFile, SetError

NAMES = ["set.tar", "set.tar.gz", "set.tgz"]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    write_bundle(small_set(tmp_path / "packed"), tmp_path / "set.tar")
    return tmp_path / "set.tar"


def members_of(path: Path) -> list[tuple[tarfile.TarInfo, bytes]]:
    with tarfile.open(path) as archive:
        return [(m, archive.extractfile(m).read()) for m in archive]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_a_set_comes_out_as_it_went_in(tmp_path: Path, name: str) -> None:
    folder = small_set(tmp_path / "set")
    write_bundle(folder, tmp_path / name)

    found = read_bundle(tmp_path / name, tmp_path / "deep" / "other")

    assert contents(found.path) == contents(folder.path)
    assert found.manifest == folder.manifest
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["other"]
    add_graph(found, "more", b"more")
    assert SetFolder.open(tmp_path / "deep" / "other").verify() == []


@pytest.mark.parametrize("name", NAMES)
def test_the_same_set_gives_the_same_bytes(tmp_path: Path, name: str) -> None:
    """From another folder, at another time, with other rights and in another order."""
    first = small_set(tmp_path / "one" / "set")
    second = begin(tmp_path / "two" / "other")
    for graph in reversed(GRAPHS):
        add_graph(second, graph, GRAPHS[graph])
    second = small_set(second.path)
    for number, path in enumerate(sorted(second.path.rglob("*"))):
        os.utime(path, (number, number))
        path.chmod(0o700)

    for number, folder in enumerate((first, SetFolder.open(second.path), first)):
        (tmp_path / str(number)).mkdir()
        write_bundle(folder, tmp_path / str(number) / name)

    assert len({(tmp_path / str(number) / name).read_bytes() for number in range(3)}) == 1


def test_a_bundle_is_a_tar_with_the_manifest_first(packed: Path) -> None:
    members = [info for info, _ in members_of(packed)]

    names = [info.name for info in members]
    assert names == [MANIFEST, *sorted(contents(packed.parent / "packed").keys() - {MANIFEST})]
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {
        (0, 0, 0, "", "", 0o644)
    }


def test_a_bundle_holds_nothing_that_is_not_listed(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder.path / "secret.txt").write_text("secret")
    write_bundle(folder, tmp_path / "set.tar")

    assert "secret.txt" not in {info.name for info, _ in members_of(tmp_path / "set.tar")}


def test_a_damaged_set_is_not_bundled(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder.path / "plan.json").write_text("{}")
    (tmp_path / "set.tar").write_text("older")

    with pytest.raises(DamagedFile, match=r"plan\.json"):
        write_bundle(folder, tmp_path / "set.tar")
    assert (tmp_path / "set.tar").read_text() == "older"


def test_a_bundle_that_cannot_be_written_leaves_the_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_set(tmp_path / "set")
    (tmp_path / "set.tar").write_text("older")

    def fsync(number: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(SetError, match=r"set\.tar cannot be written: No space left on device$"):
        write_bundle(folder, tmp_path / "set.tar")
    with pytest.raises(SetError, match=r"nowhere/set\.tar cannot be written: No such file"):
        write_bundle(folder, tmp_path / "nowhere" / "set.tar")
    assert (tmp_path / "set.tar").read_text() == "older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["set", "set.tar"]


def test_a_target_that_is_there_is_left_alone(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for target in (tmp_path / "packed", tmp_path / "file"):
        with pytest.raises(SetError, match="is there already; name a new or an empty folder"):
            read_bundle(packed, target)
    assert SetFolder.open(tmp_path / "packed").verify() == []


def test_an_empty_folder_may_be_the_target(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    assert read_bundle(packed, tmp_path / "empty").verify() == []


def test_a_bundle_is_read_again_from_where_it_was_written(tmp_path: Path) -> None:
    """Bundle, folder, bundle: the second is the first, and the folder is not needed for it."""
    folder = small_set(tmp_path / "set")
    write_bundle(folder, tmp_path / "first.tar")
    shutil.rmtree(folder.path)

    write_bundle(read_bundle(tmp_path / "first.tar", tmp_path / "other"), tmp_path / "second.tgz")

    first = (tmp_path / "first.tar").read_bytes()
    assert gzip.decompress((tmp_path / "second.tgz").read_bytes()) == first
