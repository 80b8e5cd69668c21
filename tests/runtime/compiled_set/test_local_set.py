"""A set that never stops an engine, whatever becomes of its folder: cases E05 and E08."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from small_sets import GRAPHS, KEY, add_graph, contents, graph_key

from noria.runtime.compiled_set import staging
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.local_set import LocalSet
from noria.runtime.errors import DamagedFile, SetError

NAMES = list(GRAPHS)
FIRST, *OTHERS = NAMES


def open_set(path: Path) -> LocalSet:
    return LocalSet(path, key=KEY, num_blocks=())


def has(store: LocalSet, name: str) -> bool:
    return store.has(name, graph_key(name))


def fill(store: LocalSet, names: list[str]) -> None:
    for name in names:
        add_graph(store, name, GRAPHS[name])


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_what_is_published_is_there_for_the_next_one(tmp_path: Path, caplog) -> None:
    path = tmp_path / "sets" / "set"
    store = open_set(path)
    fill(store, NAMES)
    store.keep_file("plan.json", b"plan")
    store.keep_file("plan.json", b"another plan")
    store.record({"graphs": NAMES})

    again = open_set(path)

    assert all(has(one, name) for one in (store, again) for name in NAMES)
    assert {name: again.read(name) for name in NAMES} == GRAPHS
    assert SetFolder.open(path).read_file("plan.json") == b"plan"
    assert SetFolder.open(path).verify() == []
    assert again.manifest.num_blocks == ()
    assert again.manifest.facts["graphs"] == NAMES
    assert warnings_in(caplog) == []


def test_a_claim_is_one_for_all_who_have_the_folder(tmp_path: Path) -> None:
    one, other = (
        open_set(tmp_path / "set"),
        SetFolder.prepare(tmp_path / "set", key=KEY, num_blocks=[9]),
    )

    release = one.claim(FIRST)

    assert release is not None
    assert one.claim(FIRST) is None
    assert other.claim(FIRST) is None
    release()
    assert other.claim(FIRST) is not None


def test_a_graph_of_another_key_is_not_there(tmp_path: Path) -> None:
    store = open_set(tmp_path / "set")
    fill(store, [FIRST])

    for one in (store, open_set(tmp_path / "set")):
        assert not one.has(FIRST, graph_key(FIRST, version=2))
        with pytest.raises(SetError, match=f"has no graph {OTHERS[0]}"):
            one.read(OTHERS[0])


def gone(path: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(path)


def replaced(path: Path, patch: pytest.MonkeyPatch) -> None:
    shutil.rmtree(path)
    path.write_text("a file")


def full(path: Path, patch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        if name.endswith(".half_written"):
            raise OSError(28, "No space left on device")

    patch.setattr(staging, "fault_point", refuse)


def read_only(path: Path, patch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise OSError(30, "Read-only file system")

    patch.setattr("os.open", refuse)


def emptied(path: Path, patch: pytest.MonkeyPatch) -> None:
    for file in sorted(path.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()


TROUBLES: list[Callable[[Path, pytest.MonkeyPatch], None]] = [
    gone,
    replaced,
    full,
    read_only,
    emptied,
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda one: one.__name__)
def test_e08_a_folder_that_cannot_be_written_any_more_is_warned_about_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, trouble
) -> None:
    """E08: removed, emptied, full or read-only between one graph and the next."""
    store = open_set(tmp_path / "set")
    fill(store, [FIRST])
    with monkeypatch.context() as patch:
        trouble(tmp_path / "set", patch)
        fill(store, OTHERS)
        with store.locked():
            store.record({"graphs": NAMES})
        claims = [store.claim("late") for _ in range(2)]
        store.publish_file("plan.json", b"plan")
        store.fail("late", "Error: no\nmore", key=graph_key("late"), seconds=1)

        assert {name: store.read(name) for name in NAMES if has(store, name)} == GRAPHS
        assert [one.status for one in store.manifest.graphs.values()] == ["done"] * 4 + ["failed"]
        assert store.manifest.graphs["late"].error == "Error: no"
        assert store.problem is not None
        for release in claims:
            assert release is not None
            release()
    (warning,) = warnings_in(caplog)
    assert str(tmp_path / "set") in warning
    assert warning.endswith("what is compiled from now on is kept in memory only")


@pytest.mark.parametrize("where", ["a file", "a file/deeper", "others"])
def test_e08_a_folder_that_cannot_be_a_set_is_warned_about_once(
    tmp_path: Path, caplog, where: str
) -> None:
    """E08: what is in the way is left alone."""
    (tmp_path / "a file").write_text("mine")
    (tmp_path / "others").mkdir()
    (tmp_path / "others" / "notes.txt").write_text("mine")
    before = contents(tmp_path)

    store = open_set(tmp_path / where)
    fill(store, NAMES)

    assert {name: store.read(name) for name in NAMES if has(store, name)} == GRAPHS
    assert contents(tmp_path) == before
    assert len(warnings_in(caplog)) == 1


def test_e08_a_set_that_is_only_readable_is_read_without_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """E08: a whole set on a read-only disk has nothing to write."""
    fill(open_set(tmp_path / "set"), NAMES)
    read_only(tmp_path / "set", monkeypatch)

    store = open_set(tmp_path / "set")

    assert {name: store.read(name) for name in NAMES if has(store, name)} == GRAPHS
    assert warnings_in(caplog) == []


def flip(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "half": lambda data: data[: len(data) // 2],
    "empty": lambda data: b"",
    "flipped": flip,
    "zeros": lambda data: bytes(len(data)),
    "others'": lambda data: b"not mine\n",
}


@pytest.mark.parametrize("how", DAMAGES)
def test_e05_a_damaged_graph_is_not_there_and_published_again(tmp_path: Path, how: str) -> None:
    """E05: half of it, nothing of it, one bit of it."""
    fill(open_set(tmp_path / "set"), NAMES)
    file = tmp_path / "set" / "graphs" / f"{FIRST}.graph"
    file.write_bytes(DAMAGES[how](file.read_bytes()))

    store = open_set(tmp_path / "set")

    assert [has(store, name) for name in NAMES] == [False, True, True, True]
    with pytest.raises(DamagedFile, match=f"{FIRST}.graph"):
        store.read(FIRST)
    fill(store, [FIRST])
    assert SetFolder.open(tmp_path / "set").verify() == []


@pytest.mark.parametrize("how", ["gone", *DAMAGES])
def test_e05_a_damaged_manifest_is_warned_about_and_the_set_begun_again(
    tmp_path: Path, caplog, how: str
) -> None:
    """E05: the manifest is what marks a graph as done."""
    fill(open_set(tmp_path / "set"), NAMES)
    manifest = tmp_path / "set" / "manifest.json"
    if how == "gone":
        manifest.unlink()
    else:
        manifest.write_bytes(DAMAGES[how](manifest.read_bytes()))

    store = open_set(tmp_path / "set")

    assert not any(has(store, name) for name in NAMES)
    (warning,) = warnings_in(caplog)
    assert str(tmp_path / "set") in warning
    assert "manifest.json" in warning
    assert "compiled again" in warning
    fill(store, NAMES)
    assert SetFolder.open(tmp_path / "set").verify() == []


def test_a_graph_that_failed_is_not_there_until_it_is_compiled(tmp_path: Path) -> None:
    store = open_set(tmp_path / "set")
    store.fail(FIRST, "Error: no\nmore", key=graph_key(FIRST), seconds=1)
    assert not has(store, FIRST)

    fill(store, [FIRST])
    store.fail(FIRST, "Error: no\nmore", key=graph_key(FIRST), seconds=1)

    assert has(store, FIRST)
    assert has(open_set(tmp_path / "set"), FIRST)


def test_threads_publish_and_read_at_once(tmp_path: Path) -> None:
    store = open_set(tmp_path / "set")
    start = threading.Barrier(5)

    def publish(name: str) -> None:
        start.wait()
        fill(store, [name])

    threads = [threading.Thread(target=publish, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    start.wait()
    while not all(has(store, name) for name in NAMES):
        assert set(store.manifest.graphs) <= set(NAMES)
    for thread in threads:
        thread.join()

    assert SetFolder.open(tmp_path / "set").verify() == []
    assert {name: store.read(name) for name in NAMES} == GRAPHS
