"""Damaged sets and engines: what is damaged is named, made anew or refused, and never run."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from command_forks import FOUR_GRAPHS, TracedOnce
from set_damages import NUM_DAMAGES, damages
from small_sets import files_of
from thread_workers import start_thread

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.build import detect_instruction_set
from noria.kernels.kernel_set import KernelSet
from noria.runtime import LLM, SamplingParams, loading
from noria.runtime.assembly import assemble, build_model, limits_of
from noria.runtime.cli import main
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.compiled_set.native_library import LIBRARY, library_of
from noria.runtime.compiled_set.set_source import choose_source
from noria.runtime.config import parse_config
from noria.runtime.errors import DamagedFile, NoriaError, SetError
from noria.runtime.graph_source import Run
from noria.runtime.graphs import CompiledGraphs
from noria.runtime.kv_cache import CacheSize
from noria.runtime.models.sources import open_model
from noria.runtime.planning import bucket_plan

UNREAD = ("plan.json", "config.yaml")
"""Files for people, which no engine reads."""
GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
PROMPTS = [[1, 2, 3], [5] * 9]
Damage = Callable[[Path], object]


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)


DAMAGES: Mapping[str, Damage] = {
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "empty": lambda path: os.truncate(path, 0),
    "flipped": flip,
    "missing": lambda path: path.unlink(),
}


class Watched:
    """Kernels of a source: what is loaded and compiled is noted, and neither is run."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.num_compiled = 0

    def load(self, traced: bytes, *graph: object) -> Run:
        self.loaded.append(traced)
        return lambda: None

    def compile(self, *graph: object) -> Run:
        self.num_compiled += 1
        return lambda: None


class Starts:
    """Starts of one engine as far as its graphs, over one model."""

    def __init__(self) -> None:
        self.config, self.kernels = parse_config(dict(FOUR_GRAPHS)), CpuKernels()
        self.plan = bucket_plan(self.config, limits_of(self.config, self.kernels))
        loaded = open_model(self.config.model)
        architecture, tensors = loaded.architecture, loaded.tensors
        self.model = build_model(self.config, architecture, self.kernels, tensors, None)

    def start(self, path: Path, *, may_compile: bool) -> tuple[Watched, CompiledGraphs]:
        """Take every graph from a set whose key fits."""
        folder, watched = SetFolder.open(path), Watched()
        isa = detect_instruction_set().name
        library_of(folder, isa, may_build=may_compile)
        kernels = cast(KernelSet, watched)
        source = choose_source(folder, folder.manifest.key, kernels, may_compile=may_compile)
        size = CacheSize(folder.manifest.num_blocks, "of the set")
        parts = assemble(self.config, self.model, self.kernels, size, source, plan=self.plan)
        graphs = parts.graphs
        graphs.compile(lambda *now: None)
        return watched, graphs


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def in_threads() -> Iterator[None]:
    """Let workers be threads that trace each graph once."""
    num_threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "start_process", start_thread)
        patch.setattr(worker, "Tracer", TracedOnce)
        yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "tiny.yaml"
    path.write_text(yaml.safe_dump(dict(FOUR_GRAPHS)))
    return path


@pytest.fixture(scope="module")
def whole(tiny: Path, in_threads: None) -> Path:
    path = tiny.parent / "set"
    assert run("compile", tiny, "-o", path).exit_code == 0
    return path


@pytest.fixture(scope="module")
def plain() -> list[tuple[int, ...]]:
    """Tokens without a set."""
    return tokens_of(LLM(dict(FOUR_GRAPHS)))


@pytest.fixture
def damaged(whole: Path, tmp_path: Path) -> Path:
    """A copy of the set, to be damaged."""
    return shutil.copytree(whole, tmp_path / "set")


def tokens_of(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate(PROMPTS, GREEDY)]


def engine(path: Path, compile: str = "auto") -> LLM:
    return LLM({**FOUR_GRAPHS, "compiled": str(path), "compile": compile})


def graph_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name.startswith("graphs/")}


def check_start(starts: Starts, path: Path, name: str, files: Mapping[str, bytes]) -> None:
    """Assert that only whole graphs are loaded, and that the other is compiled or refused."""
    whole = sorted(data for other, data in graph_files(files).items() if other != name)
    is_graph = name in graph_files(files)

    watched, graphs = starts.start(path, may_compile=True)

    assert sorted(watched.loaded) == whole
    assert watched.num_compiled == graphs.num_compilations == is_graph
    if is_graph or name == LIBRARY:
        with pytest.raises(SetError, match=name) as refusal:
            starts.start(path, may_compile=False)
        assert "\n" not in str(refusal.value)
    else:
        watched, graphs = starts.start(path, may_compile=False)
        assert (sorted(watched.loaded), graphs.num_compilations) == (whole, 0)


def test_every_flip_and_truncation_is_found_and_no_engine_runs_it(
    damaged: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As many of every file: manifest, graphs, library, plan and configuration."""
    starts, files = Starts(), files_of(damaged)
    assert len(graph_files(files)) == 4
    assert {MANIFEST, LIBRARY, *UNREAD, *graph_files(files)} == set(files)
    caplog.set_level(logging.WARNING)

    for name, data in damages(files):
        (damaged / name).write_bytes(data)
        verified = run("verify", damaged)
        assert verified.exit_code == 1
        assert [name in line for line in verified.stdout.splitlines()] == [True]
        caplog.clear()
        if name == MANIFEST:
            with pytest.raises(DamagedFile, match=name):
                starts.start(damaged, may_compile=True)
        else:
            check_start(starts, damaged, name, files)
        is_warned = name not in (MANIFEST, *UNREAD)
        assert [name in record.getMessage() for record in caplog.records] == [True] * is_warned
        (damaged / name).write_bytes(files[name])

    assert run("verify", damaged).exit_code == 0
    assert len(damages(files)) == NUM_DAMAGES
    assert {name for name, _ in damages(files)} == set(files)


def files_to_damage() -> list[str]:
    names = ("prefill_t32_c32", "decode_s2_c32", "sampler_r2_greedy", "copy_blocks_g0_s2")
    return [*(f"graphs/{name}.graph" for name in names), LIBRARY, *UNREAD]


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", files_to_damage())
def test_e05_a_damaged_file_is_named_and_made_anew_and_tokens_are_right(
    damaged: Path,
    tiny: Path,
    plain: Sequence[tuple[int, ...]],
    caplog: pytest.LogCaptureFixture,
    name: str,
    damage: Damage,
) -> None:
    """E05: by the engine for itself; in the set, by compiling it again."""
    files = files_of(damaged)
    damage(damaged / name)
    caplog.set_level(logging.WARNING)

    llm = engine(damaged)
    warnings = [record.getMessage() for record in caplog.records]

    assert llm.loaded.graphs.num_compilations == (name in graph_files(files))
    assert [name in text for text in warnings] == [True] * (name not in UNREAD)
    assert tokens_of(llm) == plain
    if name in UNREAD:
        assert engine(damaged, "never").loaded.graphs.num_compilations == 0
    else:
        with pytest.raises(SetError, match=name):
            engine(damaged, "never")
    check_made_anew(damaged, tiny, files)


def check_made_anew(damaged: Path, tiny: Path, files: Mapping[str, bytes]) -> None:
    assert run("verify", damaged).exit_code == 1
    assert run("compile", tiny, "-o", damaged).exit_code == 0
    assert run("verify", damaged).exit_code == 0
    assert {**files_of(damaged), MANIFEST: b""} == {**files, MANIFEST: b""}
    assert engine(damaged, "never").loaded.graphs.num_compilations == 0


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_e05_a_damaged_manifest_is_one_line_and_the_set_made_anew(
    damaged: Path, tiny: Path, damage: Damage
) -> None:
    """E05: without its metadata nothing of a set is known to be right."""
    files = files_of(damaged)
    damage(damaged / MANIFEST)

    for choice in ("auto", "never"):
        with pytest.raises(DamagedFile, match=MANIFEST) as refusal:
            engine(damaged, choice)
        assert "\n" not in str(refusal.value)
    check_made_anew(damaged, tiny, files)


@pytest.mark.usefixtures("in_threads")
def test_e05_a_graph_that_the_manifest_lost_is_named_and_made_anew(
    damaged: Path,
    tiny: Path,
    plain: Sequence[tuple[int, ...]],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """E05: the done-marker of a graph is its entry in the manifest."""
    name, files, manifest = "decode_s2_c32", files_of(damaged), SetFolder.open(damaged).manifest
    graphs = {other: graph for other, graph in manifest.graphs.items() if other != name}
    (damaged / MANIFEST).write_bytes(replace(manifest, graphs=graphs).to_bytes())

    llm = engine(damaged)

    assert llm.loaded.graphs.num_compilations == 1
    assert f"has no graph {name}" in caplog.text
    assert tokens_of(llm) == plain
    with pytest.raises(NoriaError, match=name):
        engine(damaged, "never")
    check_made_anew(damaged, tiny, files)


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("moment", ["_set_num_threads", "open_model", "assemble"])
def test_e08_a_set_that_is_deleted_after_the_lookup_is_compiled_again(
    damaged: Path,
    plain: Sequence[tuple[int, ...]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
) -> None:
    """E08: at some moment between the look at the manifest and the first graph."""
    act = getattr(loading, moment)

    def delete(*args: Any, **named: Any) -> Any:
        shutil.rmtree(damaged, ignore_errors=True)
        return act(*args, **named)

    monkeypatch.setattr(loading, moment, delete)
    llm = engine(damaged)

    assert llm.loaded.graphs.num_compilations == 4
    assert all(f"{name} is missing" in caplog.text for name in files_to_damage()[:4])
    assert tokens_of(llm) == plain
