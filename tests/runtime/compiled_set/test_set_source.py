"""An engine whose graphs come from a compiled set."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.runtime import LLM, SamplingParams
from noria.runtime.assembly import (
    assemble,
    build_model,
    kv_groups,
    limits_of,
    tensors_without_memory,
)
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.identity import set_identity, set_key
from noria.runtime.config import parse_config
from noria.runtime.errors import SetError
from noria.runtime.graph_source import EngineGraph, GraphSource, Run
from noria.runtime.kv_cache import CacheSize, sized
from noria.runtime.models.sources import open_model
from noria.runtime.planning import bucket_plan

SETTINGS = {
    "model": {
        "model_type": "llama",
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    },
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 64,
    "num_batched_tokens_buckets": [16, 64],
    "num_seqs_buckets": [1, 2],
    "num_blocks": 9,
    "block_size": 16,
}
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPTS = [[1, 2, 3], [9] * 20]


class Publisher(GraphSource):
    """Traces graphs without weights into a set."""

    def __init__(self, kernels: CpuKernels, folder: SetFolder) -> None:
        self.kernels = kernels
        self.folder = folder

    @property
    def num_compilations(self) -> int:
        return 0

    def get(self, graph: EngineGraph) -> Run:
        data = self.kernels.trace(graph.module, graph.inputs)
        self.folder.publish(graph.name, data, key=graph.key, seconds=1, peak_bytes=1)
        return lambda: None


@pytest.fixture(scope="module")
def plain() -> Iterator[list[tuple[int, ...]]]:
    """Tokens of an engine without a set."""
    threads = torch.get_num_threads()
    yield [output.token_ids for output in LLM(SETTINGS).generate(PROMPTS, GREEDY)]
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A set of all graphs, traced without weights."""
    path = tmp_path_factory.mktemp("sets") / "set"
    config, kernels = parse_config(SETTINGS), CpuKernels()
    architecture, size = open_model(config.model).architecture, CacheSize((9,), "given")
    groups = sized(kv_groups(config, architecture), size)
    identity = set_identity(config, kernels, architecture=architecture, groups=groups)
    folder = SetFolder.prepare(path, key=set_key(identity, kernels), num_blocks=(9,))
    tracing = kernels.for_tracing()
    tensors = tensors_without_memory(architecture, torch.float32)
    model = build_model(config, architecture, tracing, tensors, None)
    plan = bucket_plan(config, limits_of(config, tracing))
    parts = assemble(config, model, tracing, size, Publisher(tracing, folder), plan=plan)
    parts.graphs.compile(lambda label, index, total: None)
    return path


def tokens_of(llm: LLM) -> list[tuple[int, ...]]:
    return [output.token_ids for output in llm.generate(PROMPTS, GREEDY)]


def test_an_engine_of_a_set_compiles_nothing_and_gives_the_same(compiled: Path, plain):
    llm = LLM({**SETTINGS, "compiled": str(compiled), "compile": "never"})

    assert llm.loaded.graphs.num_compilations == 0
    assert tokens_of(llm) == plain
    assert llm.loaded.invariance.is_invariant


def test_progress_tells_graphs_that_are_loaded_from_those_that_are_compiled(
    compiled: Path, tmp_path: Path
):
    whole, lacking, texts = SetFolder.open(compiled), "decode_s2_c64", []
    partial = SetFolder.prepare(
        tmp_path / "set", key=whole.manifest.key, num_blocks=whole.manifest.num_blocks
    )
    for name, graph in whole.manifest.graphs.items():
        if name != lacking:
            partial.publish(name, whole.read(name), key=graph.key, seconds=1, peak_bytes=1)

    llm = LLM(
        {**SETTINGS, "compiled": str(partial.path)}, progress=lambda *done: texts.append(done[0])
    )

    labels = [bucket.label for bucket in llm.loaded.plan.buckets]
    expected = [f"{'compile' if label == lacking else 'load'} {label}" for label in labels]
    assert texts == [*expected, "done"]


def copy_of(path: Path, target: Path) -> Path:
    shutil.copytree(path, target)
    return target


def test_e05_a_damaged_graph_is_compiled_again_with_a_warning_or_refused(
    compiled: Path, plain, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    damaged = copy_of(compiled, tmp_path / "set")
    graph = damaged / "graphs" / "decode_s2_c64.graph"
    data = bytearray(graph.read_bytes())
    data[len(data) // 2] ^= 1
    graph.write_bytes(data)

    llm = LLM({**SETTINGS, "compiled": str(damaged)})

    assert llm.loaded.graphs.num_compilations == 1
    assert "decode_s2_c64.graph" in caplog.text
    assert tokens_of(llm) == plain
    with pytest.raises(SetError, match=r"decode_s2_c64.*nothing may be compiled"):
        LLM({**SETTINGS, "compiled": str(damaged), "compile": "never"})


def test_e08_a_graph_that_vanished_is_compiled_again(compiled: Path, plain, tmp_path: Path):
    damaged = copy_of(compiled, tmp_path / "set")
    (damaged / "graphs" / "prefill_t16_c64.graph").unlink()

    llm = LLM({**SETTINGS, "compiled": str(damaged)})

    assert llm.loaded.graphs.num_compilations == 1
    assert tokens_of(llm) == plain


def test_a_set_for_other_settings_names_the_fields_that_differ(
    compiled: Path, caplog: pytest.LogCaptureFixture
):
    other = {**SETTINGS, "compiled": str(compiled), "dtype": "bfloat16"}

    with pytest.raises(SetError, match=r"dtype: \"float32\" in the set, \"bfloat16\" here"):
        LLM({**other, "compile": "never"})
    llm = LLM(other)

    assert llm.loaded.graphs.num_compilations > 0
    assert "every graph is compiled now" in caplog.text


def test_a_folder_without_a_set_is_refused(tmp_path: Path):
    with pytest.raises(SetError, match="manifest"):
        LLM({**SETTINGS, "compiled": str(tmp_path)})


def test_never_compiling_needs_a_set():
    with pytest.raises(SetError, match="compiled names no set, and there are no local sets"):
        LLM({**SETTINGS, "compile": "never"})


@pytest.mark.parametrize("num_blocks", [5, 12])
def test_a_number_of_blocks_in_the_configuration_stands(compiled: Path, plain, num_blocks: int):
    """Graphs of the cpu are the same for every number; the set's is only what auto takes."""
    settings = {**SETTINGS, "compiled": str(compiled), "compile": "never"}

    given, auto = (LLM({**settings, "num_blocks": one}) for one in (num_blocks, "auto"))

    assert given.loaded.cache_size.num_blocks == (num_blocks,)
    assert {cache.shape[0] for cache in given.loaded.cache.keys} == {num_blocks}
    assert auto.loaded.cache_size.num_blocks == (9,)
    assert tokens_of(given) == tokens_of(auto) == plain


def test_kernels_that_fix_the_number_of_blocks_refuse_a_set_of_another(
    compiled: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(CpuKernels, "fixes_num_blocks", True)
    settings = {**SETTINGS, "compiled": str(compiled), "num_blocks": 12}

    with pytest.raises(SetError, match=r"groups\[0\].num_blocks: missing in the set, 12 here"):
        LLM({**settings, "compile": "never"})
    llm = LLM(settings)

    assert llm.loaded.cache_size.num_blocks == (12,)
    assert "num_blocks" in caplog.text
    assert llm.loaded.graphs.num_compilations > 0


def test_a_graph_file_of_another_graph_is_refused(compiled: Path, tmp_path: Path):
    """The manifest and every hash are right, but the file is of a graph with other inputs."""
    swapped = copy_of(compiled, tmp_path / "set")
    folder = SetFolder.open(swapped)
    key = dict(folder.manifest.graphs["decode_s1_c64"].key)
    trace = json.loads(folder.read("decode_s1_c64"))
    trace["attributes"] = dict.fromkeys(trace["attributes"], "model.missing")
    with folder.locked():
        (swapped / "graphs" / "decode_s1_c64.graph").unlink()
    folder.publish("decode_s1_c64", json.dumps(trace).encode(), key=key, seconds=1, peak_bytes=1)

    with pytest.raises(SetError, match=r"decode_s1_c64 does not load: .*model.missing"):
        LLM({**SETTINGS, "compiled": str(swapped), "compile": "never"})
