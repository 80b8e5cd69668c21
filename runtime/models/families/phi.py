"""Phi-3, Phi-3.5 and Phi-4-mini."""

from __future__ import annotations

from typing import Any

from ..config_fields import ConfigFields
from ..tensor_names import TensorNames
from .family import Family, windowed_layers


def _phi3(fields: ConfigFields) -> dict[str, Any]:
    return {"layers": windowed_layers(fields, partial=True), "names": PHI3_NAMES}


PHI3_NAMES = TensorNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))
PHI3 = Family(
    model_type="phi3",
    class_name="Phi3ForCausalLM",
    read=_phi3,
    keys=("original_max_position_embeddings",),
    defaults={
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 4096,
        "original_max_position_embeddings": 4096,
    },
)
