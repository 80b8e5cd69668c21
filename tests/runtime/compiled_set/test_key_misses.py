"""What makes a compiled set or one of its graphs miss, and what does not: cases E01 and E02."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from key_cases import IDENTITY, LAYOUT, kernels
from tiny_families import SIZES

from noria.bucketing import DecodeBucket
from noria.kernels.reference import ReferenceKernels
from noria.runtime.assembly import kv_groups
from noria.runtime.compiled_set.identity import graph_key, set_identity, set_key
from noria.runtime.compiled_set.key import Key, key_differences, key_digest
from noria.runtime.config import parse_config
from noria.runtime.kv_cache import CacheSize, sized
from noria.runtime.models.inline import read_inline
from noria.runtime.settings import Config

MODEL = {key: value for key, value in SIZES.items() if key != "pad_token_id"}


class Cache:
    """A cache of compiled sets: which digests it has seen."""

    def __init__(self) -> None:
        self.digests: set[str] = set()

    def hits(self, *keys: Key) -> bool:
        digest = key_digest({"keys": keys})
        hit = digest in self.digests
        self.digests.add(digest)
        return hit


def test_e01_another_number_of_drafts_misses_and_the_first_one_hits_again() -> None:
    """E01: k is the query_len of decode graphs, less one."""
    cache, shared = Cache(), set_key(IDENTITY, kernels())

    def hits(num_drafts: int) -> bool:
        bucket = DecodeBucket(4, 64, query_len=1 + num_drafts)
        return cache.hits(shared, graph_key(bucket, LAYOUT))

    assert [hits(k) for k in (2, 4, 2)] == [False, False, True]


def test_e01_as_many_rows_of_other_drafts_are_another_graph() -> None:
    """E01: eight requests of one token are no four requests of two."""
    one, other = DecodeBucket(8, 64), DecodeBucket(4, 64, query_len=2)
    assert one.num_rows == other.num_rows

    lines = key_differences(graph_key(one, LAYOUT), graph_key(other, LAYOUT))

    assert "bucket.query_len: 1 in the set, 2 here" in lines


BLOCKS = tuple(replace(group, block_size=8) for group in IDENTITY.groups)
BLOCK_LAYOUT = replace(LAYOUT, groups=tuple(replace(g, block_size=8) for g in LAYOUT.groups))
MISSES: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "flags": ({}, {"compiler_flags": "-O2"}, "kernels.compiler_flags"),
    "compiler": ({}, {"compiler": "g++ 13"}, "kernels.compiler"),
    "instruction set": ({}, {"instruction_set": "avx512"}, "kernels.instruction_set"),
    "kernel sources": ({}, {"sources": "y"}, "kernels.sources"),
    "kernels": ({}, {"name": "reference"}, "kernels.name"),
    "another fact": ({}, {"generation": "trn2"}, "kernels.generation"),
    "target": ({"target": "trn3"}, {}, "target"),
    "backend": ({"backend": "neuron"}, {}, "backend"),
    "dtype": ({"dtype": "bfloat16"}, {}, "dtype"),
    "TP degree": ({"tensor_parallel_size": 2}, {}, "tensor_parallel_size"),
    "block size": ({"groups": BLOCKS, "layout": BLOCK_LAYOUT}, {}, "groups[0,1].block_size"),
}


@pytest.mark.parametrize("name", MISSES)
def test_e02_a_change_misses_with_its_name_and_changing_it_back_hits(name: str) -> None:
    """E02: compiler flags and version, target name, block size, dtype, TP degree."""
    changes, facts, path = MISSES[name]
    cache, old = Cache(), set_key(IDENTITY, kernels())
    new = set_key(replace(IDENTITY, **changes), kernels(**facts))

    assert [cache.hits(key) for key in (old, new, old, new)] == [False, False, True, True]
    assert path.replace("0,1", "0-1") in {
        line.partition(": ")[0] for line in key_differences(old, new)
    }


def test_e02_another_torch_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    """E02: its version is part of the key, with what it was built for."""
    old = set_key(IDENTITY, kernels())
    monkeypatch.setattr(torch, "__version__", "2.99.0+cpu")

    (line,) = key_differences(old, set_key(IDENTITY, kernels()))

    assert line == f'torch: {old["torch"]!r} in the set, "2.99.0+cpu" here'.replace("'", '"')


OTHER_MODEL = {**MODEL, "vocab_size": 62}
CHANGE_GRAPHS: dict[str, Any] = {
    "model": OTHER_MODEL,
    "backend": "neuron-sim",
    "target": "trn3",
    "dtype": "bfloat16",
    "kv_cache_dtype": "fp8_e4m3",
    "max_model_len": 32,
    "max_num_prefill_seqs": 1,
    "block_size": 8,
    "num_blocks": 20,
    "tensor_parallel_size": 2,
    "sampler_features": ("greedy",),
    "max_logprobs": 3,
}
CHOOSE_GRAPHS: dict[str, Any] = {
    "max_num_seqs": 3,
    "max_num_batched_tokens": 8,
    "buckets": "exponential",
    "num_batched_tokens_buckets": (8, 32),
    "num_seqs_buckets": (1, 4),
    "prefill_context_length_buckets": (16, 64),
    "decode_context_length_buckets": (16, 64),
}
"""Which graphs there are: their own keys tell them apart."""
CHANGE_NOTHING: dict[str, Any] = {
    "tokenizer": "elsewhere",
    "kv_cache_memory_bytes": 2**30,
    "scheduling_policy": "priority",
    "compiled": "a/set",
    "compile": "never",
    "num_threads": 1,
    "sampling": None,
    "seed": 7,
}


def configured(config: Config) -> Key:
    architecture, _ = read_inline(config.model)  # type: ignore[arg-type]
    groups = kv_groups(config, architecture)
    assert isinstance(config.num_blocks, int)
    groups = sized(groups, CacheSize((config.num_blocks,) * len(groups), "as configured"))
    identity = set_identity(config, ReferenceKernels(), architecture=architecture, groups=groups)
    return set_key(identity, kernels())


@pytest.mark.parametrize("name", [one.name for one in fields(Config)])
def test_every_setting_is_known_to_change_graphs_or_not(name: str) -> None:
    settings = {"model": MODEL, "backend": "reference", "max_model_len": 64, "num_blocks": 40}
    config = parse_config(settings)
    values = CHANGE_GRAPHS | CHOOSE_GRAPHS | CHANGE_NOTHING
    assert name in values, f"does {name} change the key of a set?"
    assert getattr(config, name) != values[name]

    old, new = configured(config), configured(replace(config, **{name: values[name]}))

    assert (key_digest(old) != key_digest(new)) == (name in CHANGE_GRAPHS)
