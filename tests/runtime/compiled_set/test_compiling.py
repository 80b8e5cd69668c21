"""Sets of real graphs: what workers trace, with and without processes of their own."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from thread_workers import start_thread

from noria.kernels.kernel_set import KernelSet
from noria.runtime.assembly import assemble, build_model, limits_of
from noria.runtime.backends import load_kernels
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.compiling import compile_set
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.graph_states import State
from noria.runtime.compiled_set.key import Key
from noria.runtime.compiled_set.tracing import Recipe, Tracer, list_graphs
from noria.runtime.compiled_set.worker import Worker
from noria.runtime.config import Config, parse_config
from noria.runtime.errors import ConfigError, SetError
from noria.runtime.graph_source import EngineGraph, GraphSource, Run
from noria.runtime.kv_cache import CacheSize
from noria.runtime.models.sources import open_model
from noria.runtime.planning import bucket_plan

MODEL = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "eos_token_id": 299,
}
GRAPHS = [
    "prefill_t64_c64",
    "decode_s4_c64",
    "prefill_t32_c64",
    "decode_s2_c64",
    "sampler_r4_greedy_top_k_top_p",
    "sampler_r2_greedy_top_k_top_p",
    "copy_blocks_g0_s4",
    "sampler_r4_greedy",
    "sampler_r2_greedy",
]


def tiny(**changes: Any) -> Config:
    settings = {
        "model": MODEL,
        "backend": "cpu",
        "dtype": "float32",
        "max_model_len": 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 16,
        "num_batched_tokens_buckets": [32, 64],
        "num_seqs_buckets": [2, 4],
    }
    return parse_config({**settings, **changes})


def recipe_of(config: Config) -> Recipe:
    return Recipe(config, open_model(config.model).architecture, None, (17,))


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let workers be threads of this process."""
    monkeypatch.setattr(worker, "start_process", start_thread)
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


class TraceHere(GraphSource):
    """Traces the graphs of an engine with memory and weights."""

    num_compilations = 0

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels
        self.traces: dict[str, tuple[Key, bytes]] = {}

    def get(self, graph: EngineGraph) -> Run:
        self.traces[graph.name] = graph.key, self._kernels.trace(graph.module, graph.inputs)
        return lambda: None


def test_a_tracer_without_weights_traces_what_an_engine_has() -> None:
    config = tiny()
    kernels = load_kernels(config.backend, config.target)
    loaded = open_model(config.model)
    model = build_model(config, loaded.architecture, kernels, loaded.tensors, None)
    here = TraceHere(kernels)
    plan = bucket_plan(config, limits_of(config, kernels))
    parts = assemble(config, model, kernels, CacheSize((17,), ""), here, plan=plan)
    parts.graphs.compile(lambda *now: None)

    tracer = Tracer(pickle.loads(pickle.dumps(recipe_of(config))))

    assert {g.name: (g.key, tracer.trace(g.name)) for g in tracer.graphs} == here.traces


def test_limit_graphs_come_first_then_small_ones_then_the_others_of_the_plan() -> None:
    scoring = tiny(sampler_features=["greedy", "top_k_top_p", "prompt_logprobs"])

    names = [graph.name for graph in list_graphs(recipe_of(tiny()))]
    with_score = [graph.name for graph in list_graphs(recipe_of(scoring))]

    assert names[:2] == GRAPHS[:2]
    assert set(names[2:-2]) == set(GRAPHS[4:])
    assert names[-2:] == GRAPHS[2:4]
    assert set(with_score[:3]) == {*GRAPHS[:2], "score_t32_c64"}
    assert "scorer_r32" in with_score[3:-2]
    assert with_score[-2:] == GRAPHS[2:4]


LISTING = """
import pickle, sys
from noria.runtime.compiled_set.tracing import list_graphs
print(len(list_graphs(pickle.load(sys.stdin.buffer))), "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("num_experts", [0, 4])
def test_listing_graphs_imports_no_compiler(num_experts: int) -> None:
    """It would take longer than all else before the first worker starts."""
    model = MODEL
    if num_experts:
        experts = {"num_experts": num_experts, "num_experts_per_tok": 2}
        model = MODEL | experts | {"model_type": "qwen3_moe", "moe_intermediate_size": 32}
    recipe = recipe_of(tiny(model=model))

    listed = subprocess.run(
        [sys.executable, "-c", LISTING],
        input=pickle.dumps(recipe),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        check=True,
        timeout=600,
    )

    assert listed.stdout.split() == [str(len(GRAPHS)).encode(), b"False"]


def test_a_graph_that_there_is_not_is_refused() -> None:
    tracer = Tracer(recipe_of(tiny(backend="reference")))

    with pytest.raises(SetError, match="no graph decode_s9"):
        tracer.trace("decode_s9")


@pytest.mark.usefixtures("in_threads")
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_set_holds_graphs_plan_and_configuration(tmp_path: Path, backend: str) -> None:
    config = tiny(backend=backend)

    compiled = compile_set(config, tmp_path / "set", workers=1)

    folder = SetFolder.open(tmp_path / "set")
    resolved = yaml.safe_load(folder.read_file("config.yaml"))
    assert sorted(folder.manifest.graphs) == sorted(GRAPHS)
    assert {graph.state for graph in compiled.graphs} == {State.DONE}
    assert parse_config(resolved) == config
    assert [g["label"] for g in json.loads(folder.read_file("plan.json"))["graphs"]] == GRAPHS[:4]
    assert folder.manifest.num_blocks == (17,)
    assert folder.verify() == []


@pytest.mark.usefixtures("in_threads")
def test_e04_a_second_run_elsewhere_compiles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """E04: another working directory and other settings of no graph; nothing is added."""
    compile_set(tiny(), tmp_path / "set", workers=1)
    before = SetFolder.open(tmp_path / "set").manifest
    monkeypatch.chdir(tmp_path)

    again = compile_set(tiny(seed=5, scheduling_policy="priority"), Path("set"), workers=1)

    after = SetFolder.open(tmp_path / "set").manifest
    assert {graph.state for graph in again.graphs} == {State.THERE}
    assert after.graphs == before.graphs


@pytest.mark.usefixtures("in_threads")
def test_only_graphs_that_the_plan_adds_are_compiled(tmp_path: Path) -> None:
    compile_set(tiny(backend="reference"), tmp_path / "set", workers=1)

    more = tiny(backend="reference", num_seqs_buckets=[1, 2, 4])
    compiled = compile_set(more, tmp_path / "set", workers=1)

    added = {graph.name for graph in compiled.graphs if graph.state is State.DONE}
    assert added == {"decode_s1_c64", "sampler_r1_greedy", "sampler_r1_greedy_top_k_top_p"}


def start_none(recipe: Recipe) -> Worker:
    raise AssertionError("a worker was started")


@pytest.mark.usefixtures("in_threads")
def test_no_worker_starts_where_all_graphs_are_there_whoever_was_here_last(tmp_path: Path) -> None:
    """Plans that differ in their buckets only share a set, and the last one is noted in it."""
    few, many = tiny(backend="reference"), tiny(backend="reference", num_seqs_buckets=[1, 2, 4])
    path = tmp_path / "set"
    compile_set(few, path, workers=1)

    with pytest.raises(AssertionError, match="a worker was started"):
        compile_set(many, path, workers=4, start=start_none)
    more = compile_set(many, path, workers=4)
    again = [compile_set(config, path, workers=4, start=start_none) for config in (many, few, many)]

    assert [(one.workers.num, len(one.graphs)) for one in again] == [(0, 12), (0, 9), (0, 12)]
    assert more.workers.num <= 3
    assert {graph.state for one in again for graph in one.graphs} == {State.THERE}


@pytest.mark.usefixtures("in_threads")
def test_a_damaged_graph_is_not_there(tmp_path: Path) -> None:
    config = tiny(backend="reference")
    compile_set(config, tmp_path / "set", workers=1)
    (tmp_path / "set" / "graphs" / "decode_s2_c64.graph").write_bytes(b"other")

    again = compile_set(config, tmp_path / "set", workers=1)

    assert [g.name for g in again.graphs if g.state is State.DONE] == ["decode_s2_c64"]
    assert again.folder.verify() == []


@pytest.mark.usefixtures("in_threads")
def test_a_set_for_other_settings_is_refused_with_what_differs(tmp_path: Path) -> None:
    compile_set(tiny(backend="reference"), tmp_path / "set", workers=1)

    with pytest.raises(SetError, match=r"dtype: \"float32\" in the set, \"float64\" here"):
        compile_set(tiny(backend="reference", dtype="float64"), tmp_path / "set", workers=1)


@pytest.mark.usefixtures("in_threads")
def test_blocks_that_were_found_once_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free memory, which auto may follow, is another at each run."""
    compile_set(tiny(backend="reference"), tmp_path / "set", workers=1)
    few = tiny(backend="reference", kv_cache_memory="8KiB")

    again = compile_set(few, tmp_path / "set", workers=1)

    assert again.folder.manifest.num_blocks == (17,)


def test_a_configuration_beyond_this_machine_is_refused_before_a_worker_starts(
    tmp_path: Path,
) -> None:
    too_large = tiny(num_blocks=2**27 - 1)

    with pytest.raises(ConfigError, match="num_blocks"):
        compile_set(too_large, tmp_path / "set", start=start_none)

    assert not (tmp_path / "set").exists()


class KilledAtFirst(Worker):
    """A worker whose process is killed when it has its first graph, once for all workers."""

    killed = False
    blocked = 0

    def hand(self, name: str) -> None:
        super().hand(name)
        if not KilledAtFirst.killed:
            KilledAtFirst.killed = True
            assert self._process.pid is not None
            status = Path(f"/proc/{self._process.pid}/status").read_text()
            KilledAtFirst.blocked = int(status.split("SigBlk:")[1].split()[0], 16)
            os.kill(self._process.pid, signal.SIGKILL)


def test_processes_compile_a_set_though_one_is_killed(tmp_path: Path) -> None:
    first = compile_set(tiny(), tmp_path / "set", workers=2, start=KilledAtFirst)

    (failed,) = first.failed
    tracer = Tracer(recipe_of(tiny()))
    others = [name for name in GRAPHS if name != failed.name]
    assert KilledAtFirst.blocked >> (signal.SIGINT - 1) & 1, "workers leave interrupts to us"
    assert "was killed by SIGKILL" in failed.error
    assert failed.error in first.folder.read_file(f"errors/{failed.name}.txt").decode()
    assert {name: first.folder.read(name) for name in others} == {
        name: tracer.trace(name) for name in others
    }
    entries = [first.folder.manifest.graphs[name] for name in others]
    assert all(entry.seconds > 0 and entry.peak_bytes > 50 * 2**20 for entry in entries)

    again = compile_set(tiny(), tmp_path / "set", workers=1)

    assert [g.name for g in again.graphs if g.state is State.DONE] == [failed.name]
    assert again.folder.verify() == []
