"""Llama 2 and 3, SmolLM2; Mistral; SmolLM3; Mixtral."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..config_fields import ConfigFields
from ..rope_config import read_rope
from ..tensor_names import TensorNames
from .family import (
    NO_WINDOW,
    Family,
    full_layers,
    mixed_layers,
    num_layers,
    read_experts,
    switched_layer_types,
    windowed_layers,
)


def biases(fields: ConfigFields) -> dict[str, Any]:
    """Read ``attention_bias``, which stands for all four projections, and ``mlp_bias``."""
    is_biased = fields.flag("attention_bias", False)
    mlp_bias = fields.flag("mlp_bias", False)
    return {"qkv_bias": is_biased, "out_bias": is_biased, "mlp_bias": mlp_bias}


def _llama(fields: ConfigFields) -> dict[str, Any]:
    return {"layers": full_layers(fields), **biases(fields)}


def _mistral(fields: ConfigFields) -> dict[str, Any]:
    return {"layers": windowed_layers(fields)}


def _smollm3(fields: ConfigFields) -> dict[str, Any]:
    count, rope = num_layers(fields), read_rope(fields)
    interval = fields.positive_int("no_rope_layer_interval", 4)
    listed = fields.one_per_layer("no_rope_layers", count, (0, 1))
    # The list holds 1 for layers that do have a rope.
    has_rope = listed or tuple((index + 1) % interval != 0 for index in range(count))
    types = switched_layer_types(fields, lambda index: not has_rope[index])
    layers = mixed_layers(fields, types, [rope if has else None for has in has_rope])
    return {"layers": layers, **biases(fields)}


def _mixtral(fields: ConfigFields) -> dict[str, Any]:
    num = fields.positive_int("num_local_experts")
    experts = read_experts(fields, num, "intermediate_size", normalize=True)
    layers = tuple(replace(kind, experts=experts) for kind in windowed_layers(fields))
    return {"layers": layers, "names": MIXTRAL_NAMES}


MIXTRAL_NAMES = TensorNames(
    router="block_sparse_moe.gate",
    experts="block_sparse_moe.experts",
    expert_parts=("w1", "w3", "w2"),
)
LLAMA = Family(
    model_type="llama",
    class_name="LlamaForCausalLM",
    read=_llama,
    keys=("attention_bias", "mlp_bias"),
    fixed=NO_WINDOW,
)
MISTRAL = Family(
    model_type="mistral",
    class_name="MistralForCausalLM",
    read=_mistral,
    defaults={"num_key_value_heads": 8, "sliding_window": 4096, "max_position_embeddings": 131072},
)
SMOLLM3 = Family(
    model_type="smollm3",
    class_name="SmolLM3ForCausalLM",
    read=_smollm3,
    keys=(
        "attention_bias",
        "mlp_bias",
        "no_rope_layer_interval",
        "no_rope_layers",
        "use_sliding_window",
    ),
    defaults={
        "num_key_value_heads": 4,
        "rope_theta": 2000000.0,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    },
)
MIXTRAL = Family(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    read=_mixtral,
    keys=("num_experts_per_tok", "num_local_experts"),
    defaults={
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000000.0,
        "max_position_embeddings": 131072,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
)
