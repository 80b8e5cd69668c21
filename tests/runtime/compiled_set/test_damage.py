"""Damaged, deleted and unwritable sets: found, named, and made anew where that is possible."""

from __future__ import annotations

import errno
import logging
import os
import queue
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
from small_sets import GRAPHS, KEY, NUM_BLOCKS, add_graph, begin, contents, graph_key, small_set

from noria.runtime.compiled_set import locking
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST, Manifest
from noria.runtime.errors import DamagedFile, SetError

NAME = "decode_s8_c256"
LONG_S = 600.0
FILE = f"graphs/{NAME}.graph"
Damage = Callable[[Path], None]
DAMAGES: Mapping[str, Damage] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": lambda path: flip(path, 10),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "missing": lambda path: path.unlink(),
}


def flip(path: Path, index: int) -> None:
    data = bytearray(path.read_bytes())
    data[index] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_e05_a_damaged_graph_is_found_and_made_anew(tmp_path: Path, damage: Damage) -> None:
    folder = small_set(tmp_path / "set")
    damage(folder.path / FILE)

    found = SetFolder.open(folder.path)
    assert [line for line in found.verify() if FILE in line] == found.verify() != []
    assert not found.has(NAME, graph_key(NAME))
    with pytest.raises(DamagedFile, match=FILE) as caught:
        found.read(NAME)
    assert "\n" not in str(caught.value)

    add_graph(begin(folder.path), NAME, b"anew")
    assert SetFolder.open(folder.path).read(NAME) == b"anew"
    assert SetFolder.open(folder.path).verify() == []


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_e05_a_damaged_manifest_is_found_and_the_set_made_anew(
    tmp_path: Path, damage: Damage, caplog: pytest.LogCaptureFixture
) -> None:
    whole = contents(small_set(tmp_path / "set").path)
    damage(tmp_path / "set" / MANIFEST)

    with pytest.raises(DamagedFile, match=MANIFEST):
        SetFolder.open(tmp_path / "set")
    with caplog.at_level(logging.WARNING):
        folder = small_set(tmp_path / "set")

    assert [MANIFEST in record.getMessage() for record in caplog.records] == [True]
    assert contents(folder.path) == whole
    assert folder.verify() == []


def test_e05_a_manifest_that_loses_a_graph_loses_only_that(tmp_path: Path) -> None:
    """The done-marker of a graph is its entry in the manifest."""
    folder = small_set(tmp_path / "set")
    graphs = {n: graph for n, graph in folder.manifest.graphs.items() if n != NAME}
    manifest = Manifest(KEY, NUM_BLOCKS, graphs, folder.manifest.files)
    (folder.path / MANIFEST).write_bytes(manifest.to_bytes())

    found = SetFolder.open(folder.path)
    assert not found.has(NAME, graph_key(NAME))
    assert found.verify() == [f"{folder.path}: {FILE} is not listed"]
    small_set(folder.path)
    assert SetFolder.open(folder.path).verify() == []


def test_e08_a_graph_that_is_deleted_after_the_lookup_is_a_damaged_file(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    assert folder.has(NAME, graph_key(NAME))

    shutil.rmtree(folder.path)

    with pytest.raises(DamagedFile, match=f"{FILE} is missing$"):
        folder.read(NAME)
    with pytest.raises(SetError, match=r"cannot be written: No such file or directory$"):
        add_graph(folder, NAME, b"anew")


def test_e08_a_set_that_is_deleted_and_begun_again_while_a_writer_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that the writer waits for is then no longer that of the folder."""
    pauses: queue.SimpleQueue[float] = queue.SimpleQueue()
    is_renewed = threading.Event()

    def sleep(seconds: float) -> None:
        """Tell of it; it would fail where it looked while there is no folder."""
        pauses.put(seconds)
        is_renewed.wait(LONG_S)
        time.sleep(seconds)

    monkeypatch.setattr(locking, "time", SimpleNamespace(sleep=sleep))
    folder = small_set(tmp_path / "set")
    second = SetFolder.open(folder.path)
    waiting = threading.Thread(target=add_graph, args=(second, "late", b"late"))

    with ExitStack() as renewed:
        with folder.locked():
            waiting.start()
            pauses.get(timeout=LONG_S)
            shutil.rmtree(folder.path)
            renewed.enter_context(small_set(folder.path).locked())
        is_renewed.set()
        pauses.get(timeout=LONG_S)
        assert waiting.is_alive()
    waiting.join(timeout=600)

    found = SetFolder.open(folder.path)
    assert found.read("late") == b"late"
    assert found.verify() == []


def test_verify_names_every_problem(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder.path / "plan.json").unlink()
    os.truncate(folder.path / "kernels/libnoria_cpu.so", 7)
    flip(folder.path / FILE, 0)
    (folder.path / "graphs" / ".staged-file-x.graph").touch()
    (folder.path / "notes.txt").touch()
    (folder.path / "other").mkdir()
    (folder.path / "other" / "link").symlink_to("nowhere")

    lines = [line.removeprefix(f"{folder.path}: ") for line in folder.verify()]
    assert [" ".join(line.split()[:5]) for line in lines] == [
        f"{FILE} has the sha256 " + lines[0].split()[4],
        "kernels/libnoria_cpu.so has 7 bytes, not",
        "plan.json is missing",
        "graphs/.staged-file-x.graph is left over from",
        "notes.txt is not listed",
        "other/link is not listed",
    ]


def test_verify_tells_a_damaged_manifest(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    flip(folder.path / MANIFEST, 40)

    assert len(folder.verify()) == 1
    assert "manifest.json is damaged" in folder.verify()[0]


def test_verify_does_not_wait_and_does_not_mind_what_a_writer_stages(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    with SetFolder.open(folder.path).locked():
        (folder.path / ".staged-x").touch()
        assert folder.verify() == []
    assert len(folder.verify()) == 1


def test_what_dead_writers_left_is_removed_under_the_lock(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    whole = contents(folder.path)
    for name in (".staged-manifest-manifest.json", "graphs/.staged-file-x.graph"):
        (folder.path / name).write_bytes(b"half")
    (folder.path / "graphs" / "unlisted.graph").write_bytes(b"whole")

    with SetFolder.open(folder.path).locked():
        assert contents(folder.path) == whole


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
def test_a_disk_that_refuses_leaves_a_whole_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Each of the waits for the disk in turn is refused: three of files, then one of a folder."""
    before = contents(small_set(tmp_path / "set").path)
    for number in range(6):
        path = shutil.copytree(tmp_path / "set", tmp_path / f"set_{number}")
        folder = SetFolder.open(path)

        with pytest.raises(SetError, match=f" cannot be written: {os.strerror(code)}$") as caught:
            replace_with_refusal(folder, number, code, monkeypatch)

        assert "\n" not in str(caught.value)
        if number < 3:
            assert contents(path) == before
        found = SetFolder.open(path)
        assert [line for line in found.verify() if "not listed" not in line] == []
        assert {n: found.read(n) for n in GRAPHS if n != NAME} == {
            n: data for n, data in GRAPHS.items() if n != NAME
        }
        add_graph(folder, NAME, b"replaced", version=2)
        assert SetFolder.open(path).read(NAME) == b"replaced"
        assert folder.verify() == []


def replace_with_refusal(
    folder: SetFolder, number: int, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replace a graph while the disk refuses the wait of this number."""
    left = [number]

    def fsync(file: int) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        add_graph(folder, NAME, b"replaced", version=2)
