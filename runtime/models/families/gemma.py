"""Gemma 2 and the text models of Gemma 3."""

from __future__ import annotations

import math
from typing import Any

from ..config_fields import ConfigFields
from ..rope_config import read_rope, rope_of_block
from ..rope_scaling import Rope
from ..tensor_names import TensorNames
from .family import FULL, SLIDING, Family, layer_types, mixed_layers, num_layers
from .llama import biases

THETAS = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}


def _shared(fields: ConfigFields) -> dict[str, Any]:
    found = biases(fields)
    return {
        "qkv_bias": found["qkv_bias"],
        "out_bias": found["out_bias"],
        "sandwich_norms": True,
        "norm_offset": 1.0,
        "embedding_scale": math.sqrt(fields.positive_int("hidden_size")),
        "attention_scale": fields.positive_float("query_pre_attn_scalar") ** -0.5,
        "attention_softcap": fields.optional_float("attn_logit_softcapping"),
        "logits_softcap": fields.optional_float("final_logit_softcapping"),
        "names": GEMMA_NAMES,
    }


def _gemma2(fields: ConfigFields) -> dict[str, Any]:
    types = layer_types(fields, lambda index: index % 2 == 0)
    layers = mixed_layers(fields, types, [read_rope(fields)] * num_layers(fields))
    return {"layers": layers, **_shared(fields)}


def _gemma3(fields: ConfigFields) -> dict[str, Any]:
    pattern = fields.positive_int("sliding_window_pattern", 6)
    pattern = fields.positive_int("_sliding_window_pattern", pattern)
    types = layer_types(fields, lambda index: (index + 1) % pattern != 0)
    ropes = {kind: _rope_of(fields, kind) for kind in (FULL, SLIDING)}
    layers = mixed_layers(fields, types, [ropes[str(kind)] for kind in types])
    return {"layers": layers, "qk_norm": True, **_shared(fields)}


def _rope_of(fields: ConfigFields, kind: str) -> Rope:
    """Read the rope of one kind of layer: nested by kind, or flat (full ones scale)."""
    theta = fields.positive_float(THETAS[kind])
    nested = fields.block("rope_parameters")
    if nested is not None and set(nested.values) <= set(THETAS):
        block = nested.block(kind)
        if block is None:
            return Rope(theta)
        return rope_of_block(block, fields, block.positive_float("rope_theta", theta))
    if kind == FULL:
        return read_rope(fields)
    return Rope(theta)


GEMMA_NAMES = TensorNames(mlp_norm="pre_feedforward_layernorm")
SHARED_KEYS = (
    "attention_bias",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "hidden_activation",
    "query_pre_attn_scalar",
    "use_bidirectional_attention",
)
FIXED = {"use_bidirectional_attention": (None, False)}
GEMMA2 = Family(
    model_type="gemma2",
    class_name="Gemma2ForCausalLM",
    read=_gemma2,
    keys=SHARED_KEYS,
    fixed=FIXED,
    defaults={
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "max_position_embeddings": 8192,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "tie_word_embeddings": True,
    },
)
GEMMA3 = Family(
    model_type="gemma3_text",
    class_name="Gemma3ForCausalLM",
    read=_gemma3,
    keys=(
        *SHARED_KEYS,
        "_sliding_window_pattern",
        "rope_local_base_freq",
        "sliding_window_pattern",
    ),
    fixed=FIXED,
    defaults={
        **GEMMA2.defaults,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "max_position_embeddings": 131072,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
)
