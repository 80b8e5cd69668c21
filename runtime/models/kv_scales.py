"""Scales of an FP8 KV cache, as checkpoints hold them.

Exporters agree on what a scale means (stored times scale is the value) and not on its name: some
write it beside the attention, some beside the projection, one as the scale of its output, and old
ones write a single one for keys and values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from ..errors import ModelError
from .architecture import Architecture
from .config_fields import MAX_FLOAT32, MIN_FLOAT32

KEY_NAMES = (
    "self_attn.k_scale",
    "self_attn.attn.k_scale",
    "self_attn.k_proj.k_scale",
    "self_attn.qkv_proj.k_scale",
    "self_attn.k_proj.output_scale",
    "self_attn.kv_scale",
    "attn.k_scale",
)
VALUE_NAMES = (
    "self_attn.v_scale",
    "self_attn.attn.v_scale",
    "self_attn.v_proj.v_scale",
    "self_attn.qkv_proj.v_scale",
    "self_attn.v_proj.output_scale",
    "self_attn.kv_scale",
    "attn.v_scale",
)
OTHER_NAMES = (
    "self_attn.q_scale",
    "self_attn.attn.q_scale",
    "self_attn.q_proj.q_scale",
    "self_attn.q_proj.output_scale",
    "self_attn.prob_scale",
    "self_attn.attn.prob_scale",
    "self_attn.prob_output_scale",
)
"""Of queries and probabilities, which stay in the model's dtype here."""


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the stored keys and values of one layer are multiplied by when they are read."""

    k: float = 1.0
    v: float = 1.0


def scale_names(architecture: Architecture) -> frozenset[str]:
    """Return the names of all scales that a checkpoint may hold besides its weights."""
    return frozenset(
        f"{architecture.names.layer(index)}.{name}"
        for index in range(architecture.num_layers)
        for name in (*KEY_NAMES, *VALUE_NAMES, *OTHER_NAMES)
    )


def read_kv_scales(
    tensors: Mapping[str, Tensor], architecture: Architecture
) -> tuple[KVScales | None, ...]:
    """Return the scales of each layer, None where the checkpoint has none.

    Raises:
        ModelError: a layer has one of the two, or two that differ, or a scale that is none.
    """
    prefixes = [architecture.names.layer(index) for index in range(architecture.num_layers)]
    return tuple(_layer_scales(tensors, prefix) for prefix in prefixes)


def _layer_scales(tensors: Mapping[str, Tensor], prefix: str) -> KVScales | None:
    k, v = (_scale(tensors, prefix, names) for names in (KEY_NAMES, VALUE_NAMES))
    if k is None and v is None:
        return None
    if k is None or v is None:
        missing = f"{prefix}.{(KEY_NAMES if k is None else VALUE_NAMES)[0]}"
        raise ModelError(f"{missing} is missing, though the other scale of the layer is there")
    return KVScales(k, v)


def _scale(tensors: Mapping[str, Tensor], prefix: str, names: tuple[str, ...]) -> float | None:
    found: dict[float, str] = {}
    for name in (f"{prefix}.{name}" for name in names):
        if name in tensors:
            found.setdefault(_number(name, tensors[name]), name)
    if len(found) > 1:
        raise ModelError(f"{' and '.join(found.values())} differ; keep one of them")
    return next(iter(found), None)


def _number(name: str, scale: Tensor) -> float:
    if scale.numel() != 1:
        raise ModelError(f"{name} is {list(scale.shape)}; only one scale per layer is supported")
    if not scale.is_floating_point():
        raise ModelError(f"{name} is of {str(scale.dtype).removeprefix('torch.')}; must be a float")
    number = float(scale)
    if not MIN_FLOAT32 <= number <= MAX_FLOAT32:
        limits = f"a number above 0, from {MIN_FLOAT32} to {MAX_FLOAT32}"
        raise ModelError(f"{name} is {number}; must be {limits}")
    return number
