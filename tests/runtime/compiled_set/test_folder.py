from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_sets import (
    ERROR,
    FAILED,
    FILES,
    GRAPHS,
    KEY,
    NUM_BLOCKS,
    add_graph,
    begin,
    contents,
    graph_key,
    small_set,
)

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST, Manifest
from noria.runtime.errors import DamagedFile, NoriaError, SetError

NAME = "decode_s8_c256"
FILE = f"graphs/{NAME}.graph"


def test_a_set_holds_what_was_published(tmp_path: Path) -> None:
    small_set(tmp_path / "set")

    folder = SetFolder.open(tmp_path / "set")
    assert {name: folder.read(name) for name in GRAPHS} == GRAPHS
    assert {path: folder.read_file(path) for path in FILES} == FILES
    assert folder.manifest.key == KEY
    assert folder.manifest.num_blocks == NUM_BLOCKS
    assert folder.manifest.facts == {"invariance": {"checked": 3}}
    assert folder.manifest.graphs[NAME].key == graph_key(NAME)
    assert (folder.manifest.graphs[NAME].seconds, folder.manifest.graphs[NAME].peak_bytes) == (
        1.5,
        2**20,
    )
    assert folder.verify() == []


def test_the_folder_has_the_files_that_are_listed_and_no_others(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    assert set(contents(folder.path)) == {*folder.manifest.all_files, MANIFEST}
    assert set(folder.manifest.all_files) == {
        *FILES,
        *(f"graphs/{name}.graph" for name in GRAPHS),
        f"errors/{FAILED}.txt",
    }


def test_files_have_the_rights_that_others_of_the_user_have(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (tmp_path / "plain").touch()

    rights = {stat.S_IMODE((folder.path / path).stat().st_mode) for path in contents(folder.path)}
    assert rights == {stat.S_IMODE((tmp_path / "plain").stat().st_mode)}


def test_the_error_of_a_failed_graph_is_kept_whole(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    assert folder.read_file(f"errors/{FAILED}.txt").decode() == ERROR
    assert folder.manifest.graphs[FAILED].error == "OperatorError: no such operator"
    with pytest.raises(SetError, match=f"no graph {FAILED}: compiling it failed: OperatorError"):
        folder.read(FAILED)
    assert not folder.has(FAILED, graph_key(FAILED))


@pytest.mark.parametrize("text", ["", "\n\n", "\ud800 half"])
def test_errors_of_any_text_are_kept(tmp_path: Path, text: str) -> None:
    folder = begin(tmp_path / "set")

    folder.fail(FAILED, text, key={}, seconds=0)

    assert SetFolder.open(folder.path).verify() == []


def test_a_graph_that_failed_once_can_be_published(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    add_graph(folder, FAILED, b"graph")

    assert folder.read(FAILED) == b"graph"
    assert not (folder.path / "errors" / f"{FAILED}.txt").exists()
    assert folder.verify() == []


def test_a_failure_does_not_replace_a_whole_graph(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    folder.fail(NAME, ERROR, key=graph_key(NAME), seconds=1)

    assert folder.read(NAME) == GRAPHS[NAME]
    assert folder.verify() == []


def test_a_failure_with_another_key_replaces_the_graph(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    folder.fail(NAME, ERROR, key=graph_key(NAME, version=2), seconds=1)

    assert folder.manifest.graphs[NAME].status == "failed"
    assert not (folder.path / FILE).exists()
    assert folder.verify() == []


def test_the_first_of_equal_key_stays(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    add_graph(folder, NAME, b"as good")

    assert folder.read(NAME) == GRAPHS[NAME]


def test_a_graph_with_another_key_replaces_the_one_that_was_there(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    add_graph(folder, NAME, b"other", version=2)

    assert folder.read(NAME) == b"other"
    assert folder.has(NAME, graph_key(NAME, version=2))
    assert not folder.has(NAME, graph_key(NAME))
    assert folder.verify() == []


def test_true_and_one_are_two_keys(tmp_path: Path) -> None:
    folder = begin(tmp_path / "set")
    folder.publish(NAME, b"", key={"bias": True, "shape": (1, 2)}, seconds=0, peak_bytes=0)

    assert folder.has(NAME, {"shape": [1, 2], "bias": True})
    assert not folder.has(NAME, {"shape": [1, 2], "bias": 1})


def test_a_file_can_be_replaced(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")

    folder.publish_file("plan.json", b"new")

    assert SetFolder.open(folder.path).read_file("plan.json") == b"new"
    assert folder.verify() == []


def test_publishing_the_same_again_writes_nothing(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    before = {path: (folder.path / path).stat() for path in contents(folder.path)}

    for name, data in FILES.items():
        folder.publish_file(name, data)
    for name, data in GRAPHS.items():
        add_graph(folder, name, data)

    after = {path: (folder.path / path).stat() for path in before}
    assert {p: (s.st_ino, s.st_mtime_ns) for p, s in after.items()} == {
        p: (s.st_ino, s.st_mtime_ns) for p, s in before.items()
    }


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 100])
def test_names_that_are_no_file_names_are_refused(tmp_path: Path, name: str) -> None:
    folder = begin(tmp_path / "set")

    with pytest.raises(SetError, match="is no path of a file in a compiled set"):
        folder.publish(name, b"", key={}, seconds=0, peak_bytes=0)
    with pytest.raises(SetError, match="is no path of a file in a compiled set"):
        folder.fail(name, "", key={}, seconds=0)


def test_what_is_not_listed_cannot_be_read(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder.path / "graphs" / "other.graph").touch()

    with pytest.raises(SetError, match=r"has no graph other$"):
        folder.read("other")
    with pytest.raises(SetError, match=r"does not list \.\./x$"):
        folder.read_file("../x")


def test_preparing_opens_a_set_of_the_same_key(tmp_path: Path) -> None:
    before = contents(small_set(tmp_path / "set").path)

    folder = begin(tmp_path / "set")

    assert folder.read(NAME) == GRAPHS[NAME]
    assert contents(folder.path) == before


def test_preparing_refuses_a_set_of_another_key_and_says_what_differs(tmp_path: Path) -> None:
    before = contents(small_set(tmp_path / "set").path)

    with pytest.raises(
        SetError, match=r"other settings: architecture\.num_heads: 4 in the set, 8 here; target: "
    ) as caught:
        SetFolder.prepare(
            tmp_path / "set",
            key={"architecture": {"num_heads": 8}, "target": "reference"},
            num_blocks=NUM_BLOCKS,
        )
    assert "\n" not in str(caught.value)
    with pytest.raises(SetError, match=r"num_blocks: \[64\] in the set, \[63\] here$"):
        SetFolder.prepare(tmp_path / "set", key=KEY, num_blocks=[63])
    assert contents(tmp_path / "set") == before


def test_preparing_makes_the_folders_on_the_way(tmp_path: Path) -> None:
    begin(tmp_path / "a" / "b" / "set")

    assert SetFolder.open(tmp_path / "a" / "b" / "set").manifest == Manifest(KEY, NUM_BLOCKS)


def test_preparing_leaves_folders_of_others_alone(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("mine")

    with pytest.raises(SetError, match="holds other files and no compiled set"):
        begin(tmp_path)
    assert contents(tmp_path) == {"config.yaml": b"mine"}


@pytest.mark.parametrize("data", [b'{"name": "web app"}', b"[]"])
def test_preparing_leaves_manifests_of_others_alone(tmp_path: Path, data: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(data)

    with pytest.raises(SetError, match="is not the manifest of a compiled set"):
        begin(tmp_path)
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [(MANIFEST, data)]


@pytest.mark.parametrize("data", [b'{"name": "web app"}', b"[]", b"bad\n", bytes(5000)])
def test_e05_a_set_whose_manifest_became_something_else_is_begun_again(
    tmp_path: Path, data: bytes
) -> None:
    """E05: its lock shows that the folder was a set's."""
    small_set(tmp_path)
    (tmp_path / MANIFEST).write_bytes(data)

    folder = begin(tmp_path)

    assert folder.manifest == Manifest(KEY, NUM_BLOCKS)
    small_set(tmp_path)
    assert SetFolder.open(tmp_path).verify() == []


def test_preparing_a_file_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "set").touch()

    with pytest.raises(SetError, match=r"set cannot be written: File exists$"):
        begin(tmp_path / "set")


def test_opening_what_is_no_set_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    for path in (tmp_path, tmp_path / "nothing", tmp_path / "file"):
        with pytest.raises(SetError, match=rf"^{path} is no compiled set: it has no manifest.json"):
            SetFolder.open(path)


def test_errors_are_errors_of_users() -> None:
    assert issubclass(SetError, NoriaError)
    assert issubclass(DamagedFile, SetError)


def test_a_writer_sees_what_others_published(tmp_path: Path) -> None:
    first, second = begin(tmp_path / "set"), begin(tmp_path / "set")
    add_graph(first, "a", b"a")

    assert not second.has("a", graph_key("a"))
    with second.locked():
        assert second.has("a", graph_key("a"))
        with second.locked():
            add_graph(second, "b", b"b")

    assert set(SetFolder.open(first.path).manifest.graphs) == {"a", "b"}


def test_threads_of_one_object_publish_all(tmp_path: Path) -> None:
    folder = begin(tmp_path / "set")
    names = [f"graph_{index}" for index in range(12)]
    threads = [threading.Thread(target=add_graph, args=(folder, n, n.encode())) for n in names]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)

    assert {name: folder.read(name).decode() for name in names} == {n: n for n in names}


def test_files_are_on_the_disk_before_they_appear_and_the_manifest_is_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_set(tmp_path / "set")
    calls: list[str] = []
    replace = Path.replace

    def fsync(number: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{number}"))
        calls.append(f"sync {path.relative_to(tmp_path)}")

    def renamed(self: Path, target: Path) -> Path:
        calls.append(f"rename to {target.name}")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", renamed)
    add_graph(folder, NAME, b"other", version=2)

    assert calls == [
        "sync set/.staged-unlisting-manifest.json",
        f"sync set/graphs/.staged-file-{NAME}.graph",
        "sync set/.staged-manifest-manifest.json",
        "rename to manifest.json",
        "sync set",
        f"rename to {NAME}.graph",
        "sync set/graphs",
        "rename to manifest.json",
        "sync set",
    ]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["publish", "fail", "file", "damage", "other"]),
            st.sampled_from("abc"),
            st.integers(1, 2),
            st.binary(max_size=4),
        ),
        max_size=10,
    )
)
@settings(max_examples=25, deadline=None)
def test_any_order_of_changes_gives_what_they_say(
    tmp_path_factory: pytest.TempPathFactory,
    changes: list[tuple[str, str, int, bytes]],
) -> None:
    path = tmp_path_factory.mktemp("any") / "set"
    folder, other = begin(path), begin(path)
    graphs: dict[str, tuple[int, bytes | None]] = {}
    files: dict[str, bytes] = {}
    for kind, name, version, data in changes:
        if kind == "publish":
            add_graph(folder, name, data, version)
            known = graphs.get(name)
            if known is None or known[0] != version or known[1] is None:
                graphs[name] = (version, data)
        elif kind == "fail":
            folder.fail(name, data.hex(), key=graph_key(name, version), seconds=0)
            known = graphs.get(name)
            if known is None or known[0] != version or known[1] is None:
                graphs[name] = (version, None)
        elif kind == "file":
            folder.publish_file(f"kernels/{name}", data)
            files[f"kernels/{name}"] = data
        elif kind == "other":
            folder, other = other, folder
        elif graphs.get(name, (0, None))[1] is not None:
            (path / "graphs" / f"{name}.graph").unlink()
            graphs[name] = (graphs[name][0], None)
            add_graph(folder, name, data, graphs[name][0])
            graphs[name] = (graphs[name][0], data)

    found = SetFolder.open(path)
    assert found.verify() == []
    done = {n: graph for n, graph in found.manifest.graphs.items() if graph.status == "done"}
    assert {n: found.read(n) for n in done} == {
        n: data for n, (_, data) in graphs.items() if data is not None
    }
    assert {n: graph.key for n, graph in found.manifest.graphs.items()} == {
        n: graph_key(n, version) for n, (version, _) in graphs.items()
    }
    assert {p: found.read_file(p) for p in found.manifest.files} == files
