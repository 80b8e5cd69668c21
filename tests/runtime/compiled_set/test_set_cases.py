"""Cases of keys through real sets: what was compiled for one thing is never taken for another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from command_forks import FOUR_GRAPHS, TracedOnce
from thread_workers import start_thread

from noria.bucketing import BucketPlan, DecodeBucket
from noria.kernels.cpu import CpuKernels
from noria.runtime import LLM
from noria.runtime.assembly import assemble, build_model, limits_of
from noria.runtime.cli import main
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.set_source import choose_source
from noria.runtime.config import parse_config
from noria.runtime.errors import SetError
from noria.runtime.graph_source import CompileHere, EngineGraph, GraphSource, Run
from noria.runtime.graphs import CompiledGraphs
from noria.runtime.kv_cache import CacheSize
from noria.runtime.models.sources import open_model
from noria.runtime.planning import bucket_plan

KEY = {"set": "of drafts"}
Make = Callable[[GraphSource], CompiledGraphs]


class Keeping(GraphSource):
    """Takes what a set has of a graph's name and key; traces what it lacks into the set."""

    num_compilations = 0

    def __init__(self, folder: SetFolder, kernels: CpuKernels, *, names_tell: bool = True) -> None:
        self.folder, self.kernels, self.names_tell = folder, kernels, names_tell
        self.source = choose_source(folder, KEY, kernels, may_compile=False)

    def get(self, graph: EngineGraph) -> Run:
        if not self.names_tell:
            graph = replace(graph, name=graph.name.partition("_q")[0])
        if not self.folder.has(graph.name, graph.key):
            self.num_compilations += 1
            data = self.kernels.trace(graph.module, graph.inputs)
            self.folder.publish(graph.name, data, key=graph.key, seconds=1, peak_bytes=1)
        return self.source.get(graph)


@pytest.fixture(scope="module")
def makes() -> Callable[[int], Make]:
    """Makers of all graphs for a number of drafts, over one model."""
    config, kernels = parse_config(dict(FOUR_GRAPHS)), CpuKernels()
    loaded = open_model(config.model)
    model = build_model(config, loaded.architecture, kernels, loaded.tensors, None)
    plan = bucket_plan(config, limits_of(config, kernels))

    def maker(num_drafts: int) -> Make:
        decode = DecodeBucket(2, plan.decode[-1].context_len, query_len=1 + num_drafts)

        def make(source: GraphSource) -> CompiledGraphs:
            size, own = CacheSize((9,), "given"), BucketPlan(plan.prefill, (decode,))
            graphs = assemble(config, model, kernels, size, source, plan=own).graphs
            graphs.compile(lambda *now: None)
            return graphs

        return make

    return maker


def logits_of(graphs: CompiledGraphs) -> dict[str, torch.Tensor]:
    """Return the logits of every graph for a token of its own in each row."""
    found = {}
    for bucket, graph in graphs.models.items():
        for name in ("input_ids", "logits_positions"):
            graph.arrays[name][:] = np.arange(graph.arrays[name].size)
        graph.run()
        assert len({tuple(row) for row in graph.logits_RV.tolist()}) > 1
        found[bucket.label] = graph.logits_RV.clone()
    return found


@pytest.mark.parametrize(("names_tell", "expected_num"), [(True, [5, 2, 0]), (False, [5, 2, 1])])
def test_e01_drafts_in_one_set_miss_once_each_and_logits_are_right(
    makes: Callable[[int], Make], tmp_path: Path, names_tell: bool, expected_num: list[int]
) -> None:
    """E01: k is 2, then 4, then 2: the first two compile, the third hits.

    Where names say nothing of k, a graph takes the place of the other: keys alone tell them apart.
    """
    kernels = CpuKernels()
    num_compiled = []
    for num_drafts in (2, 4, 2):
        make = makes(num_drafts)
        folder = SetFolder.prepare(tmp_path / "set", key=KEY, num_blocks=(9,))
        source = Keeping(folder, kernels, names_tell=names_tell)
        found, expected = logits_of(make(source)), logits_of(make(CompileHere(kernels)))
        num_compiled.append(source.num_compilations)
        assert found.keys() == expected.keys()
        assert f"decode_s2_c32_q{1 + num_drafts}" in found
        assert all(torch.equal(found[label], expected[label]) for label in found)

    # All; then a model graph and its sampler; then nothing, or the model graph anew.
    assert num_compiled == expected_num


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(one) for one in arguments])


@pytest.fixture(scope="module")
def compile_in_threads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Result]]:
    """Compile the settings with some changed into the one set that there is."""
    folder, num_threads = tmp_path_factory.mktemp("one"), torch.get_num_threads()

    def compile_changed(**changes: object) -> Result:
        config = folder / "tiny.yaml"
        config.write_text(yaml.safe_dump({**FOUR_GRAPHS, **changes}))
        return run("compile", config, "-o", folder / "set")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "start_process", start_thread)
        patch.setattr(worker, "Tracer", TracedOnce)
        assert "4 done" in compile_changed().stdout
        yield compile_changed
    torch.set_num_threads(num_threads)


CHANGES: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
    "kernels.compiler_flags": ({}, {"compiler_flags": "-O1"}),
    "kernels.compiler": ({}, {"compiler": "another 1.0"}),
    "kernels.instruction_set": ({}, {"instruction_set": "another"}),
    "dtype": ({"dtype": "bfloat16"}, {}),
    "groups[0].block_size": ({"block_size": 8}, {}),
}
"""Fields of the key: settings and facts of the kernels that change them."""


@pytest.mark.parametrize("field", CHANGES)
def test_e02_a_change_is_refused_with_its_name_and_changing_it_back_compiles_nothing(
    compile_in_threads: Callable[..., Result], monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    """E02: compiler flags and version, instruction set, block size, dtype."""
    settings, facts = CHANGES[field]
    fingerprint = CpuKernels.fingerprint
    path = compile_in_threads().stdout.partition("set: 4 there")[0].splitlines()[-1] + "set"
    with monkeypatch.context() as patch:
        changed = property(lambda kernels: {**fingerprint.fget(kernels), **facts})
        patch.setattr(CpuKernels, "fingerprint", changed)
        refused = compile_in_threads(**settings)
        with pytest.raises(SetError) as refusal:
            LLM({**FOUR_GRAPHS, **settings, "compiled": path, "compile": "never"})
        llm = LLM({**FOUR_GRAPHS, **settings, "compiled": path})
    back = compile_in_threads()

    assert refused.exit_code == 2
    assert f"{field}: " in refused.stderr
    assert len(refused.stderr.splitlines()) == 1
    assert f"{field}: " in str(refusal.value)
    assert llm.loaded.graphs.num_compilations == 4
    assert (back.exit_code, "4 there" in back.stdout) == (0, True)
