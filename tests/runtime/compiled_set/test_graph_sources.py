"""All code of the runtime that says what graphs are is part of the key of a compiled set."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from tiny_families import CASES, SIZES

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.runtime.assembly import (
    assemble,
    build_model,
    kv_groups,
    limits_of,
    tensors_without_memory,
)
from noria.runtime.compiled_set.identity import GRAPH_SOURCES, RUNTIME
from noria.runtime.config import parse_config
from noria.runtime.graph_source import EngineGraph, GraphSource
from noria.runtime.kv_cache import CacheSize
from noria.runtime.models.inline import read_inline
from noria.runtime.planning import bucket_plan
from noria.runtime.sampler_features import FEATURE_NEEDS, GREEDY

FEATURES = [GREEDY, *dict.fromkeys(need.feature for need in FEATURE_NEEDS)]
ASIDE = {"compiled_set/identity.py", "graph_source.py", "kv_cache_dtype.py", "planning.py"}
"""Who asks for graphs, and what makes values that are in the key themselves."""


class Tracing(GraphSource):
    """Traces every graph, and keeps nothing."""

    def __init__(self, kernels: KernelSet) -> None:
        self.kernels, self.names = kernels, set[str]()

    @property
    def num_compilations(self) -> int:
        return len(self.names)

    def get(self, graph: EngineGraph) -> Callable[[], None]:
        self.names.add(graph.name)
        assert self.kernels.trace(graph.module, graph.inputs)
        return lambda: None


@pytest.mark.parametrize("family", ["gemma2", "qwen3-moe"])
def test_all_code_that_makes_graphs_is_part_of_the_key(family: str) -> None:
    """Whatever module of ours runs while graphs are made and traced is hashed."""
    ran: set[str] = set()

    def note(frame: FrameType, event: str, arg: object) -> None:
        ran.add(frame.f_code.co_filename)

    model = {key: one for key, one in {**SIZES, **CASES[family]}.items() if key != "pad_token_id"}
    architecture, _ = read_inline(model)
    config = parse_config(
        {
            **{"model": model, "dtype": "float32", "max_model_len": 64, "max_num_seqs": 2},
            **{"num_batched_tokens_buckets": [64], "sampler_features": FEATURES},
        }
    )
    kernel_set = CpuKernels().for_tracing()
    plan = bucket_plan(config, limits_of(config, kernel_set))
    sys.setprofile(note)
    try:
        tensors = tensors_without_memory(architecture, torch.float32)
        decoder = build_model(config, architecture, kernel_set, tensors, None)
        size = CacheSize((9,) * len(kv_groups(config, architecture)), "a test's")
        source = Tracing(kernel_set)
        parts = assemble(config, decoder, kernel_set, size, source, plan=plan)
        parts.graphs.compile(lambda *_: None)
    finally:
        sys.setprofile(None)

    assert source.num_compilations > len(plan.buckets)
    modules = {Path(name).resolve() for name in ran}
    folder = RUNTIME.resolve()
    own = {path.relative_to(folder).as_posix() for path in modules if folder in path.parents}
    assert {"models/decoder.py", "sampler.py", "block_copies.py"} <= own
    assert own - set(GRAPH_SOURCES) - ASIDE == set()
