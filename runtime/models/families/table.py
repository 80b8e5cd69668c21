"""The families by ``model_type``, and the keys that all of them read alike."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ...errors import ModelError
from ...value_text import value_text
from ..architecture import Architecture
from ..config_fields import ConfigFields
from ..rope_scaling import DEFAULT_ROPE_THETA
from .family import Family
from .gemma import GEMMA2, GEMMA3
from .llama import LLAMA, MISTRAL, MIXTRAL, SMOLLM3
from .phi import PHI3
from .quantization import require_unquantized
from .qwen import QWEN2, QWEN3, QWEN3_MOE

FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        family.model_type: family
        for family in (
            LLAMA,
            MISTRAL,
            SMOLLM3,
            QWEN2,
            QWEN3,
            QWEN3_MOE,
            PHI3,
            GEMMA2,
            GEMMA3,
            MIXTRAL,
        )
    }
)
MAX_VOCAB_SIZE = 2**20
"""Far beyond any trained model: tokens are listed before weights are read."""
MAX_HEAD_DIM = 2**16
"""Far beyond any trained model: frequencies of heads are listed before weights are read."""
LLAMA_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "rope_theta": DEFAULT_ROPE_THETA,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
NULL_IS_A_VALUE = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "head_dim",
    "num_key_value_heads",
    "sliding_window",
)
"""Keys in which null means none, also where the default is something else."""
FIXED = {"is_encoder_decoder": (None, False)}
ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def read_architecture(config: Mapping[str, object], *, source: str = "config.json") -> Architecture:
    """Read ``config.json`` keys; missing optional keys take the defaults of the family.

    Keys that a nested ``text_config`` holds count where the top level lacks them.
    ``pretraining_tp`` is ignored on purpose: it tells how training was split, and the sum
    over its slices is the same function. Required: vocab_size, hidden_size,
    intermediate_size, num_hidden_layers, num_attention_heads.

    Raises:
        ModelError: a value is missing, of the wrong type or impossible, or the model needs
            something that is not built; the text names ``source``, key and value.
    """
    fields = ConfigFields(_with_text_config(config), source)
    family = _family(fields)
    require_unquantized(fields)
    fields = ConfigFields(_with_defaults(fields.values, family), source)
    _require_fixed(fields, family)
    try:
        return Architecture(**_common(fields), **family.read(fields))
    except ModelError as error:
        if str(error).startswith(source):
            raise
        raise fields.error(str(error)) from None


def _with_text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    nested = config.get("text_config")
    return {**nested, **config} if isinstance(nested, Mapping) else config


def _family(fields: ConfigFields) -> Family:
    """Find the family by model type, or by the class where a file names only that."""
    model_type, classes = fields.get("model_type"), fields.get("architectures")
    names = list(classes) if isinstance(classes, list | tuple) else [classes]
    if model_type is None and classes is None:
        raise fields.error(f"model_type is missing (supported: {', '.join(FAMILIES)})")
    for family in FAMILIES.values():
        if model_type == family.model_type or (model_type is None and family.class_name in names):
            break
    else:
        key = "architectures" if model_type is None else "model_type"
        shown = value_text(fields.get(key))
        supported = FAMILIES if key == "model_type" else [f.class_name for f in FAMILIES.values()]
        raise fields.error(f"{key} {shown} is not supported (supported: {', '.join(supported)})")
    if classes and family.class_name not in names:
        shown = value_text(classes)
        raise fields.error(
            f"architectures {shown} is not supported (supported: {family.class_name})"
        )
    return family


def _with_defaults(config: Mapping[str, object], family: Family) -> Mapping[str, object]:
    """Fill in what the file leaves out; null leaves a key out unless null is a value of it."""
    given = {k: v for k, v in config.items() if v is not None or k in NULL_IS_A_VALUE}
    return {**LLAMA_DEFAULTS, **family.defaults, **given}


def _require_fixed(fields: ConfigFields, family: Family) -> None:
    """Refuse values of keys that only one value fits."""
    for key, fitting in {**FIXED, **family.fixed}.items():
        value = fields.get(key)
        if value not in fitting:
            shown = value_text(value)
            raise fields.error(f"{key} {shown} is not supported (supported: {fitting[-1]!r})")


def _common(fields: ConfigFields) -> dict[str, Any]:
    num_heads = fields.positive_int("num_attention_heads")
    vocab_size = fields.positive_int("vocab_size", high=MAX_VOCAB_SIZE)
    return {
        "vocab_size": vocab_size,
        "hidden_size": fields.positive_int("hidden_size"),
        "intermediate_size": fields.positive_int("intermediate_size"),
        "num_heads": num_heads,
        "num_kv_heads": fields.positive_int("num_key_value_heads", num_heads),
        "head_dim": _head_dim(fields, num_heads),
        "rms_norm_eps": fields.positive_float("rms_norm_eps"),
        "activation": _activation(fields),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        "max_position_embeddings": fields.positive_int("max_position_embeddings"),
        "bos_token_id": fields.token_id("bos_token_id", vocab_size),
        "eos_token_ids": fields.token_ids("eos_token_id", vocab_size),
    }


def _activation(fields: ConfigFields) -> str:
    """Read ``hidden_act`` and the newer ``hidden_activation``, which must not differ."""
    keys = [key for key in ("hidden_activation", "hidden_act") if fields.get(key) is not None]
    found = {}
    for key in keys:
        value = fields.get(key)
        if not isinstance(value, str) or value not in ACTIVATIONS:
            listed = ", ".join(ACTIVATIONS)
            raise fields.error(f"{key} {value_text(value)} is not supported (supported: {listed})")
        found[ACTIVATIONS[value]] = key
    if len(found) > 1:
        raise fields.error("hidden_act and hidden_activation differ; keep one of them")
    return next(iter(found), "silu")


def _head_dim(fields: ConfigFields, num_heads: int) -> int:
    hidden_size = fields.positive_int("hidden_size")
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise fields.error(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, "
            "so head_dim must be given"
        )
    head_dim = fields.positive_int("head_dim", hidden_size // num_heads)
    if head_dim > MAX_HEAD_DIM:
        raise fields.error(f"head_dim {head_dim} must be at most {MAX_HEAD_DIM}")
    return head_dim
