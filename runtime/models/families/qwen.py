"""Qwen2 and 2.5; Qwen3; Qwen3-MoE."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..architecture import LayerKind
from ..config_fields import ConfigFields
from ..rope_config import read_rope
from .family import (
    Family,
    mixed_layers,
    num_layers,
    read_experts,
    switched_layer_types,
    windowed_layers,
)
from .llama import biases


def _layers(fields: ConfigFields) -> tuple[LayerKind, ...]:
    """Read layers of which those from ``max_window_layers`` on may be windowed."""
    count, rope = num_layers(fields), read_rope(fields)
    first = _first_window_layer(fields)
    types = switched_layer_types(fields, lambda index: index >= first)
    return mixed_layers(fields, types, [rope] * count)


def _first_window_layer(fields: ConfigFields) -> int:
    """Read ``max_window_layers``, in which 0 is a number too."""
    value = fields.get("max_window_layers")
    if value == 0 and not isinstance(value, bool):
        return 0
    return fields.positive_int("max_window_layers", 28)


def _qwen2(fields: ConfigFields) -> dict[str, Any]:
    return {"layers": _layers(fields), "qkv_bias": True}


def _qwen3(fields: ConfigFields) -> dict[str, Any]:
    return {"layers": _layers(fields), "qk_norm": True, **_attention_biases(fields)}


def _qwen3_moe(fields: ConfigFields) -> dict[str, Any]:
    experts = read_experts(
        fields,
        _num_experts(fields),
        "moe_intermediate_size",
        normalize=fields.flag("norm_topk_prob", False),
    )
    if not fields.flag("use_sliding_window", False):
        fields = ConfigFields({**fields.values, "sliding_window": None}, fields.source)
    kinds = windowed_layers(fields)
    step, dense = fields.positive_int("decoder_sparse_step", 1), _dense_layers(fields)
    layers = tuple(
        replace(kind, experts=experts) if (index + 1) % step == 0 and index not in dense else kind
        for index, kind in enumerate(kinds)
    )
    return {"layers": layers, "qk_norm": True, **_attention_biases(fields)}


def _num_experts(fields: ConfigFields) -> int:
    """Read ``num_experts``, which newer files call ``num_local_experts``."""
    found = {
        fields.positive_int(key)
        for key in ("num_experts", "num_local_experts")
        if fields.get(key) is not None
    }
    if len(found) > 1:
        raise fields.error("num_experts and num_local_experts differ; keep one of them")
    return found.pop() if found else 128


def _dense_layers(fields: ConfigFields) -> frozenset[int]:
    """Read ``mlp_only_layers``: indices of layers without experts."""
    indices = fields.get("mlp_only_layers") or []
    count = num_layers(fields)
    if not isinstance(indices, list | tuple) or not all(
        isinstance(index, int) and not isinstance(index, bool) and 0 <= index < count
        for index in indices
    ):
        raise fields.error(f"mlp_only_layers must list layers from 0 to {count - 1}")
    return frozenset(indices)


def _attention_biases(fields: ConfigFields) -> dict[str, Any]:
    found = biases(fields)
    return {"qkv_bias": found["qkv_bias"], "out_bias": found["out_bias"]}


WINDOW_KEYS = ("max_window_layers", "use_sliding_window")
QWEN2 = Family(
    model_type="qwen2",
    class_name="Qwen2ForCausalLM",
    read=_qwen2,
    keys=WINDOW_KEYS,
    defaults={
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
    },
)
QWEN3 = Family(
    model_type="qwen3",
    class_name="Qwen3ForCausalLM",
    read=_qwen3,
    keys=(*WINDOW_KEYS, "attention_bias"),
    defaults={**QWEN2.defaults, "head_dim": 128},
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    class_name="Qwen3MoeForCausalLM",
    read=_qwen3_moe,
    keys=(
        "attention_bias",
        "decoder_sparse_step",
        "mlp_only_layers",
        "moe_intermediate_size",
        "norm_topk_prob",
        "num_experts",
        "num_experts_per_tok",
        "num_local_experts",
        "use_sliding_window",
    ),
    defaults={
        "num_key_value_heads": 4,
        "sliding_window": 4096,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
    },
)
