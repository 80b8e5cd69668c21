"""Engines that fill the local set and start from it: cases E04, E05 and E08."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_sets import (
    NUM_GRAPHS,
    PROMPTS,
    SETTINGS,
    num_compilations,
    only_set,
    tokens_of,
    warnings_in,
)

from noria.kernels.cpu import CpuKernels
from noria.runtime import LLM, engine_start
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.local_cache import cached_sets
from noria.runtime.compiled_set.native_library import LIBRARY
from noria.runtime.errors import SetError

LONG_S = 1e9
"""That a worker takes to start: all is compiled before serving, on a busy machine too."""


@pytest.fixture(autouse=True)
def no_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_start, "WORKER_START_S", LONG_S)


@pytest.fixture(scope="module")
def plain() -> Iterator[list[tuple[int, ...]]]:
    """Tokens of an engine without a set."""
    threads = torch.get_num_threads()
    llm = LLM(SETTINGS)
    assert num_compilations(llm) == NUM_GRAPHS
    yield tokens_of(llm)
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def filled(plain, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of local sets with one that an engine has filled."""
    root = tmp_path_factory.mktemp("local") / "sets"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORIA_SETS", str(root))
        patch.setattr(engine_start, "WORKER_START_S", LONG_S)
        llm = LLM(SETTINGS)
        assert tokens_of(llm) == plain
        assert num_compilations(llm) == NUM_GRAPHS
    return root


@pytest.fixture
def sets(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, which engines use."""
    root = shutil.copytree(filled, tmp_path / "sets")
    monkeypatch.setenv("NORIA_SETS", str(root))
    return root


def test_a_second_start_compiles_nothing_and_gives_the_same(sets: Path, plain, caplog) -> None:
    llm = LLM(SETTINGS)

    assert num_compilations(llm) == 0
    assert tokens_of(llm) == plain
    assert llm.loaded.invariance.num_graphs == 4
    assert warnings_in(caplog) == []
    (found,) = cached_sets(sets)
    assert found.problem is None
    assert found.model == "inline model"
    assert found.manifest is not None
    assert len(found.manifest.graphs) == NUM_GRAPHS
    assert "plan.json" in found.manifest.files


CHANGES: dict[str, dict[str, Any]] = {
    "blocks": {"num_blocks": 12},
    "found blocks": {"num_blocks": "auto"},
    "seed": {"seed": 5, "sampling": {"temperature": 0.5}},
    "policy": {"scheduling_policy": "priority"},
    "fewer graphs": {"num_seqs_buckets": [2]},
}


@pytest.mark.parametrize("what", CHANGES)
def test_e04_what_changes_no_graph_finds_the_set(sets: Path, plain, what: str) -> None:
    """E04: as many entries as before, too."""
    llm = LLM({**SETTINGS, **CHANGES[what]})

    assert num_compilations(llm) == 0
    assert tokens_of(llm) == plain
    assert len(SetFolder.open(only_set(sets)).manifest.graphs) == NUM_GRAPHS


def test_e04_configurations_of_one_set_do_not_take_its_graphs_from_each_other(sets: Path) -> None:
    """E04: copies of blocks for another number of requests are beside the first."""
    fixed = {**SETTINGS, "max_num_prefill_seqs": 2}
    four = {**fixed, "max_num_seqs": 4, "num_seqs_buckets": [1, 2, 4], "num_blocks": 17}

    nums = [num_compilations(LLM(one)) for one in (fixed, four, fixed, four)]

    # Decode of 4 requests, two samplers of 4 rows, and the copy of up to 4 blocks.
    assert nums == [0, 4, 0, 0]
    assert only_set(sets)


START = """
import json, sys
from noria.runtime import LLM, SamplingParams, engine_start
engine_start.WORKER_START_S = 1e9
llm = LLM(json.loads(sys.argv[1]))
greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
outputs = llm.generate(json.loads(sys.argv[2]), greedy)
print(json.dumps([llm.loaded.graphs.num_compilations, [one.token_ids for one in outputs]]))
"""


def start(environment: dict[str, str], folder: Path) -> list[Any]:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", START, json.dumps(SETTINGS), json.dumps(PROMPTS)],
        env={**os.environ, **environment},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    result: list[Any] = json.loads(done.stdout)
    return result


def test_e04_a_second_process_compiles_nothing_wherever_it_runs(plain, tmp_path: Path) -> None:
    """E04: another working directory, seed of hashes and locale."""
    named = {"NORIA_SETS": str(tmp_path / "sets")}

    first = start(named, tmp_path / "one")
    before = SetFolder.open(only_set(tmp_path / "sets")).manifest
    second = start({**named, "PYTHONHASHSEED": "77", "LC_ALL": "C"}, tmp_path / "two")

    assert [first[0], second[0]] == [NUM_GRAPHS, 0]
    assert [tuple(one) for one in first[1]] == [tuple(one) for one in second[1]] == plain
    assert SetFolder.open(only_set(tmp_path / "sets")).manifest == before


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("damage", [cut, flip, Path.unlink], ids=["cut", "flipped", "gone"])
@pytest.mark.parametrize("name", ["prefill_t64_c64", "decode_s1_c64", "sampler_r2_greedy"])
def test_e05_a_damaged_entry_is_named_and_compiled_again(
    sets: Path, plain, caplog, damage: Any, name: str
) -> None:
    """E05: and the set is whole again."""
    damage(only_set(sets) / "graphs" / f"{name}.graph")

    llm = LLM(SETTINGS)

    assert num_compilations(llm) == 1
    assert tokens_of(llm) == plain
    (warning,) = warnings_in(caplog)
    assert f"{name}.graph" in warning
    assert warning.endswith("it is compiled again")
    assert SetFolder.open(only_set(sets)).verify() == []
    assert num_compilations(LLM(SETTINGS)) == 0


@pytest.mark.parametrize("name", ["plan.json", "config.yaml", LIBRARY])
def test_e05_a_damaged_file_that_is_no_graph_is_named_and_made_again(
    sets: Path, caplog, name: str
) -> None:
    """E05: else the whole set would be called damaged, and cleaned away."""
    cut(only_set(sets) / name)

    LLM(SETTINGS)

    (warning,) = warnings_in(caplog)
    assert name in warning
    assert SetFolder.open(only_set(sets)).verify() == []


def test_e05_without_its_manifest_all_of_a_set_is_compiled_again(sets: Path, plain, caplog) -> None:
    """E05: the manifest is both metadata and marker of what is done."""
    (only_set(sets) / "manifest.json").unlink()

    llm = LLM(SETTINGS)

    assert num_compilations(llm) == NUM_GRAPHS
    assert tokens_of(llm) == plain
    assert "manifest.json; all of it is compiled again" in caplog.text
    assert SetFolder.open(only_set(sets)).verify() == []


@pytest.mark.parametrize("num_before", [0, 3])
def test_e08_an_engine_starts_though_its_set_is_removed_meanwhile(
    plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog, num_before: int
) -> None:
    """E08: one warning, and nothing is lost."""
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    trace, traced = CpuKernels.trace, []

    def remove_then_trace(self, *arguments):
        traced.append(arguments)
        if len(traced) == num_before + 1:
            shutil.rmtree(tmp_path / "sets")
        return trace(self, *arguments)

    monkeypatch.setattr(CpuKernels, "trace", remove_then_trace)

    llm = LLM(SETTINGS)

    assert tokens_of(llm) == plain
    (warning,) = warnings_in(caplog)
    assert "kept in memory only" in warning


def test_e08_an_engine_starts_where_no_set_can_be(
    plain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog
) -> None:
    """E08: as on a read-only disk."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "file" / "sets"))

    llm = LLM(SETTINGS)

    assert num_compilations(llm) == NUM_GRAPHS
    assert tokens_of(llm) == plain
    assert len(warnings_in(caplog)) == 1


def test_a_whole_local_set_is_enough_for_an_engine_that_compiles_nothing(sets: Path, plain) -> None:
    llm = LLM({**SETTINGS, "compile": "never"})

    assert num_compilations(llm) == 0
    assert tokens_of(llm) == plain


def test_what_a_local_set_lacks_is_named_where_nothing_may_be_compiled(sets: Path) -> None:
    (only_set(sets) / "graphs" / "decode_s1_c64.graph").unlink()
    (only_set(sets) / "graphs" / "copy_blocks_g0_s2.graph").unlink()

    with pytest.raises(SetError) as caught:
        LLM({**SETTINGS, "compile": "never"})

    assert str(caught.value) == (
        f"{only_set(sets)} lacks copy_blocks_g0_s2, decode_s1_c64; nothing may be compiled: "
        "noria compile CONFIG, without -o, fills it"
    )


def test_an_engine_that_compiles_nothing_makes_no_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))

    with pytest.raises(SetError, match=rf"{tmp_path}/sets/\w+ is no .*noria compile CONFIG"):
        LLM({**SETTINGS, "compile": "never"})

    assert not (tmp_path / "sets").exists()


def test_kernels_that_make_no_traces_keep_no_sets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    settings = {**SETTINGS, "backend": "reference"}

    LLM(settings)

    assert not (tmp_path / "sets").exists()
    with pytest.raises(SetError, match="backend reference compiles nothing that a local set keeps"):
        LLM({**settings, "compile": "never"})
