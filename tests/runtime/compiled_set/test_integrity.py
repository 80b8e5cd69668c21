"""Damage anywhere in a set is found: by ``verify``, and by whoever reads the file."""

from __future__ import annotations

from pathlib import Path

import pytest
from set_damages import damages
from small_sets import GRAPHS, add_graph, begin, contents, graph_key, small_set

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.errors import DamagedFile


def test_every_flip_and_truncation_is_found(tmp_path: Path) -> None:
    path = small_set(tmp_path / "set").path
    files = contents(path)

    for name, data in damages(files):
        (path / name).write_bytes(data)
        if name == MANIFEST:
            with pytest.raises(DamagedFile):
                SetFolder.open(path)
        else:
            folder = SetFolder.open(path)
            assert [name in line for line in folder.verify()] == [True], data
            with pytest.raises(DamagedFile):
                folder.read_file(name)
            graphs = {n for n in GRAPHS if not folder.has(n, graph_key(n))}
            assert graphs == ({Path(name).stem} & set(GRAPHS))
        (path / name).write_bytes(files[name])

    assert {name for name, _ in damages(files)} == {n for n, data in files.items() if data}
    assert SetFolder.open(path).verify() == []


def test_a_manifest_of_another_set_does_not_pass_for_its_own(tmp_path: Path) -> None:
    """Both manifests are whole; what they list tells them apart."""
    path = small_set(tmp_path / "set").path
    other = begin(tmp_path / "other")
    for name in GRAPHS:
        add_graph(other, name, b"other")
    (path / MANIFEST).write_bytes((other.path / MANIFEST).read_bytes())

    folder = SetFolder.open(path)
    assert not any(folder.has(name, graph_key(name)) for name in GRAPHS)
    for name in GRAPHS:
        with pytest.raises(DamagedFile):
            folder.read(name)


def test_two_graphs_that_changed_places_are_found(tmp_path: Path) -> None:
    path = small_set(tmp_path / "set").path
    first, second = (path / "graphs" / f"{name}.graph" for name in sorted(GRAPHS)[-2:])
    first.rename(path / "aside")
    second.rename(first)
    (path / "aside").rename(second)

    assert len(SetFolder.open(path).verify()) == 2
