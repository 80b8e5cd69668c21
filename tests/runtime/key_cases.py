"""For every field of everything in the keys of compiled sets, a value that changes the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, cast

import torch

from noria.bucketing import DecodeBucket, PrefillBucket, ScoreBucket
from noria.kernels.contract import KVGroup
from noria.kernels.kernel_set import KernelSet
from noria.runtime.compiled_set.identity import (
    SetIdentity,
    graph_key,
    sampler_key,
    scorer_key,
    set_key,
)
from noria.runtime.compiled_set.key import Key
from noria.runtime.graph_spec import GraphLayout, GroupLayout
from noria.runtime.models.architecture import Architecture, Experts, LayerKind
from noria.runtime.models.kv_scales import KVScales
from noria.runtime.models.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    Scaling,
    YarnScaling,
)
from noria.runtime.models.tensor_names import TensorNames
from noria.runtime.sampler_stages import SamplerShape


def kernels(name: str = "cpu", *, fixes_num_blocks: bool = True, **changes: str) -> KernelSet:
    facts = {
        "instruction_set": "avx2",
        "compiler": "g++ 12",
        "compiler_flags": "-O1",
        "sources": "x",
    }
    made = SimpleNamespace(
        name=name, fingerprint=facts | changes, fixes_num_blocks=fixes_num_blocks
    )
    return cast("KernelSet", made)


ARCHITECTURE = Architecture(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    layers=(LayerKind(), LayerKind(window=8)),
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
)
FULL = KVGroup((0,), 9, 4, 2, 8, 8, torch.float32)
WINDOWED = KVGroup((1,), 9, 4, 2, 8, 8, torch.float32, window=8)
LAYOUT = GraphLayout((GroupLayout(4), GroupLayout(4, 8)), 2, 1, 1)
IDENTITY = SetIdentity(
    architecture=ARCHITECTURE,
    dtype="float32",
    groups=(FULL, WINDOWED),
    kv_scales=None,
    layout=LAYOUT,
    max_model_len=64,
    sampler_features=("greedy",),
    max_logprobs=20,
    backend="cpu",
)


def key(**changes: Any) -> Key:
    return set_key(replace(IDENTITY, **changes), kernels())


def of_layer(kind: LayerKind) -> Key:
    return key(architecture=replace(ARCHITECTURE, layers=(LayerKind(), kind)))


def of_scaling(scaling: Scaling) -> Key:
    return of_layer(LayerKind(rope=Rope(scaling=scaling)))


def of_bucket(bucket: PrefillBucket | DecodeBucket) -> Key:
    return graph_key(bucket, LAYOUT)


YARN = YarnScaling(4.0, 16, 1.1)
LONGROPE = LongRopeScaling((1.0,) * 4, (2.0,) * 4, 16, 1.1)
NAMES = {one.name: "another.name" for one in fields(TensorNames)}

CASES: Mapping[Any, tuple[Callable[[Any], Key], Mapping[str, Any]]] = {
    IDENTITY: (
        lambda one: set_key(one, kernels()),
        {
            "architecture": replace(ARCHITECTURE, vocab_size=62),
            "dtype": "bfloat16",
            "groups": (FULL,),
            "kv_scales": (KVScales(), KVScales(k=0.5)),
            "layout": replace(LAYOUT, has_experts=True),
            "max_model_len": 65,
            "sampler_features": ("greedy", "top_k_top_p"),
            "max_logprobs": 5,
            "backend": "reference",
            "target": "trn2",
            "tensor_parallel_size": 2,
            "rank": 1,
        },
    ),
    ARCHITECTURE: (
        lambda one: key(architecture=one),
        {
            "vocab_size": 62,
            "hidden_size": 40,
            "intermediate_size": 56,
            "layers": (LayerKind(),) * 2,
            "num_heads": 8,
            "num_kv_heads": 4,
            "head_dim": 16,
            "rms_norm_eps": 1e-5,
            "activation": "gelu_tanh",
            "tie_word_embeddings": True,
            "qkv_bias": True,
            "out_bias": True,
            "mlp_bias": True,
            "qk_norm": True,
            "sandwich_norms": True,
            "norm_offset": 1.0,
            "embedding_scale": 5.5,
            "attention_scale": 0.3,
            "attention_softcap": 50.0,
            "logits_softcap": 30.0,
            "max_position_embeddings": 4096,
            "bos_token_id": 1,
            "eos_token_ids": (2,),
            "names": TensorNames(head="output"),
        },
    ),
    LayerKind(window=8): (
        of_layer,
        {"window": 9, "rope": None, "experts": Experts(4, 2, 20, True)},
    ),
    Experts(4, 2, 20, True): (
        lambda one: of_layer(LayerKind(experts=one)),
        {"num": 5, "num_per_token": 1, "intermediate_size": 24, "normalize": False},
    ),
    Rope(): (
        lambda one: of_layer(LayerKind(rope=one)),
        {"theta": 5e5, "scaling": LinearScaling(2.0), "partial_rotary_factor": 0.5},
    ),
    LinearScaling(2.0): (of_scaling, {"factor": 4.0, "attention_factor": 1.5}),
    Llama3Scaling(8.0, 1.0, 4.0, 16): (
        of_scaling,
        {
            "factor": 4.0,
            "low_freq_factor": 2.0,
            "high_freq_factor": 5.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.5,
        },
    ),
    YARN: (
        of_scaling,
        {
            "factor": 8.0,
            "original_max_position_embeddings": 32,
            "attention_factor": 1.5,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
    ),
    DynamicScaling(4.0, 16): (
        of_scaling,
        {"factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.5},
    ),
    LONGROPE: (
        of_scaling,
        {
            "short_factor": (1.0, 1.0, 1.0, 1.5),
            "long_factor": (2.0, 2.0, 2.0, 2.5),
            "original_max_position_embeddings": 32,
            "attention_factor": 1.5,
        },
    ),
    TensorNames(): (
        lambda one: key(architecture=replace(ARCHITECTURE, names=one)),
        NAMES | {"qkv": ("qkv",), "gate_up": ("up",), "expert_parts": ("a", "b", "c")},
    ),
    FULL: (
        lambda one: key(groups=(one, WINDOWED)),
        {
            "layers": (0, 2),
            "num_blocks": 10,
            "block_size": 8,
            "num_kv_heads": 4,
            "k_dim": 16,
            "v_dim": 16,
            "dtype": torch.float8_e4m3fn,
            "window": 4,
            "layout": "NKBD",
        },
    ),
    KVScales(): (lambda one: key(kv_scales=(KVScales(), one)), {"k": 0.5, "v": 0.25}),
    LAYOUT: (
        lambda one: key(layout=one),
        {
            "groups": (GroupLayout(4),),
            "max_num_prefill_seqs": 3,
            "prefill_tile": 2,
            "fold_blocks": 2,
            "has_experts": True,
        },
    ),
    GroupLayout(4): (
        lambda one: key(layout=replace(LAYOUT, groups=(one,))),
        {"block_size": 8, "window": 4},
    ),
    PrefillBucket(8, 16): (of_bucket, {"num_tokens": 16, "context_len": 17}),
    ScoreBucket(8, 16): (of_bucket, {"num_tokens": 16, "context_len": 17}),
    DecodeBucket(2, 16): (of_bucket, {"num_seqs": 3, "context_len": 17, "query_len": 2}),
    SamplerShape(2, 61, 64, 20): (
        lambda one: {**sampler_key(one, {"greedy"}), "scorer": scorer_key(one)},
        {"rows": 3, "vocab_size": 62, "max_model_len": 65, "max_logprobs": 5},
    ),
}
