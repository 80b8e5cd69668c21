"""Traces of the cpu are the same bytes for every number of blocks, so one set serves all."""

from __future__ import annotations

from typing import Any

import pytest
from tiny_families import CASES, SIZES

from noria.kernels.cpu import CpuKernels
from noria.kernels.nki.target import NkiSimKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.compiled_set.tracing import Recipe, Tracer
from noria.runtime.config import parse_config
from noria.runtime.models.inline import read_inline
from noria.runtime.sampler_features import FEATURE_NEEDS, GREEDY

FEATURES = [GREEDY, *dict.fromkeys(need.feature for need in FEATURE_NEEDS)]


@pytest.mark.parametrize(
    ("family", "cache_dtype"),
    [("llama", "auto"), ("gemma2", "fp8_e4m3"), ("qwen3-moe", "auto")],
)
def test_traces_of_the_cpu_do_not_depend_on_numbers_of_blocks(
    family: str, cache_dtype: str
) -> None:
    """With every kind of graph: samplers, the scorer and copies of blocks too."""
    model: dict[str, Any] = {**SIZES, **CASES.get(family, {"model_type": family})}
    del model["pad_token_id"]
    config = parse_config(
        {
            **{"model": model, "dtype": "float32", "kv_cache_dtype": cache_dtype},
            **{"max_model_len": 64, "max_num_seqs": 2, "num_batched_tokens_buckets": [64]},
            "sampler_features": FEATURES,
        }
    )
    architecture, _ = read_inline(model)
    num_groups = len({layer.window for layer in architecture.layers})
    few, many = (
        Tracer(Recipe(config, architecture, None, (count,) * num_groups)) for count in (5, 77)
    )

    kinds = {str(graph.key["kind"]) for graph in few.graphs}
    assert kinds == {"prefill", "decode", "score", "sampler", "scorer", "copy_blocks"}
    for graph in few.graphs:
        traced = few.trace(graph.name)
        assert traced
        assert traced == many.trace(graph.name), graph.name


def test_kernels_say_whether_their_traces_depend_on_it_and_whether_they_make_any() -> None:
    said = {
        one.name: (one.fixes_num_blocks, one.makes_traces)
        for one in (CpuKernels, ReferenceKernels, NkiSimKernels)
    }

    assert said == {
        "cpu": (False, True),
        "reference": (False, False),
        "neuron-sim": (True, False),
    }
