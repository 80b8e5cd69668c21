"""Compiling a set that is whole already: it is read, and nothing of it is locked or written."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
import torch
from small_sets import contents
from thread_workers import start_thread

from noria.runtime.compiled_set import locking, staging, worker
from noria.runtime.compiled_set.compiling import CompiledSet, compile_set
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.graph_states import State
from noria.runtime.compiled_set.locking import LOCK, write_lock
from noria.runtime.compiled_set.native_library import LIBRARY
from noria.runtime.config import Config, parse_config
from noria.runtime.errors import SetError

MODEL = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
}


def settings(**changes: object) -> Config:
    sizes = {"max_model_len": 64, "block_size": 16, "max_num_seqs": 2}
    few = {"num_batched_tokens_buckets": [64], "num_seqs_buckets": [2]}
    return parse_config({"model": MODEL, "dtype": "float32", **sizes, **few, **changes})


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let workers be threads of this process."""
    monkeypatch.setattr(worker, "start_process", start_thread)
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "start_process", start_thread)
        assert not compile_set(settings(), path, workers=1).failed
    return path


def without_a_lock(path: Path) -> None:
    (path / LOCK).unlink()


def with_a_lock_of_no_use(path: Path) -> None:
    (path / LOCK).unlink()
    (path / LOCK).mkdir()


PREPARATIONS: list[Callable[[Path], AbstractContextManager[None] | None]] = [
    write_lock,
    locking.quiet,
    without_a_lock,
    with_a_lock_of_no_use,
]


@contextmanager
def nothing_written() -> Iterator[None]:
    """Let every write end in an error, and so does locking."""

    def refuse(*args: object) -> None:
        raise AssertionError(f"it writes or locks: {args}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(staging, "fault_point", refuse)
        patch.setattr(locking, "_acquire", refuse)
        yield


def num_there(compiled: CompiledSet) -> int:
    return [graph.state for graph in compiled.graphs].count(State.THERE)


@pytest.mark.parametrize("prepare", PREPARATIONS, ids=lambda one: one.__name__)
def test_a_whole_set_needs_no_lock_to_say_that_nothing_is_to_be_done(
    whole: Path, tmp_path: Path, prepare: Callable[[Path], AbstractContextManager[None] | None]
) -> None:
    path = shutil.copytree(whole, tmp_path / "set")
    with prepare(path) or nullcontext():
        before = contents(path)
        with nothing_written():
            compiled = compile_set(settings(), path)
        after = contents(path)

    assert num_there(compiled) == len(compiled.graphs) == 5
    assert compiled.workers.num == 0
    assert after == before


def test_a_library_of_another_compiler_stays(whole: Path, tmp_path: Path) -> None:
    """Its key is the same: it was built of the same sources for the same instructions."""
    path = shutil.copytree(whole, tmp_path / "set")
    SetFolder.open(path).publish_file(LIBRARY, b"built elsewhere")

    with nothing_written():
        compile_set(settings(), path)

    assert SetFolder.open(path).read_file(LIBRARY) == b"built elsewhere"


@pytest.mark.parametrize("name", ["graphs/.staged-file-x", ".staged-manifest-x", "graphs/x.graph"])
def test_what_dead_writers_left_in_a_whole_set_is_removed(
    whole: Path, tmp_path: Path, name: str
) -> None:
    path = shutil.copytree(whole, tmp_path / "set")
    (path / name).write_bytes(b"half")

    compile_set(settings(), path)

    assert SetFolder.open(path).verify() == []


def lose_a_graph(path: Path) -> None:
    next(iter((path / "graphs").iterdir())).unlink()


def cut_a_graph(path: Path) -> None:
    file = next(iter((path / "graphs").iterdir()))
    file.write_bytes(file.read_bytes()[:-1])


def cut_the_library(path: Path) -> None:
    (path / LIBRARY).write_bytes(b"")


def lose_the_plan(path: Path) -> None:
    (path / "plan.json").unlink()


@pytest.mark.parametrize(
    "damage", [lose_a_graph, cut_a_graph, cut_the_library, lose_the_plan], ids=lambda d: d.__name__
)
def test_a_set_that_lacks_anything_is_written(
    whole: Path, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = shutil.copytree(whole, tmp_path / "set")
    damage(path)
    with nothing_written(), pytest.raises((AssertionError, SetError), match="it writes or locks"):
        compile_set(settings(), path)

    compile_set(settings(), path)

    assert SetFolder.open(path).verify() == []
    assert contents(path).keys() == contents(whole).keys()


def test_other_graphs_of_the_same_key_are_written(whole: Path, tmp_path: Path) -> None:
    path = shutil.copytree(whole, tmp_path / "set")

    compiled = compile_set(settings(num_seqs_buckets=[1, 2]), path)

    assert num_there(compiled) == 5
    assert len(compiled.graphs) > 5
