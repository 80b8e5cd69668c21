"""What a family is: its names, its defaults and how it reads its own keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...value_text import value_text
from ..architecture import Experts, LayerKind
from ..config_fields import ConfigFields
from ..rope_config import read_rope
from ..rope_scaling import Rope

MAX_LAYERS = 4096
"""Far beyond any trained model: names of layers are listed before weights are read."""
FULL, SLIDING = "full_attention", "sliding_attention"
COMMON_KEYS = (
    "architectures",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "is_encoder_decoder",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "partial_rotary_factor",
    "quantization_config",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "vocab_size",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One family of models.

    Attributes:
        model_type: as ``config.json`` names it, and ``class_name`` among its architectures.
        read: its own keys, as arguments of ``Architecture``; ``layers`` is one of them.
        keys: which keys those are, besides the common ones.
        defaults: values of keys that a file may leave out, where Llama's are others.
        fixed: keys of which only these values are built; the last one is named to users.
    """

    model_type: str
    class_name: str
    read: Callable[[ConfigFields], dict[str, Any]]
    keys: tuple[str, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)
    fixed: Mapping[str, tuple[object, ...]] = field(default_factory=dict)


NO_WINDOW: Mapping[str, tuple[object, ...]] = {"sliding_window": (None,)}
"""For families whose layers all see everything."""


def num_layers(fields: ConfigFields) -> int:
    """Read the number of layers."""
    return fields.positive_int("num_hidden_layers", high=MAX_LAYERS)


def full_layers(fields: ConfigFields) -> tuple[LayerKind, ...]:
    """Read layers that see everything and share a rope."""
    require_layer_types(fields, FULL)
    return (LayerKind(None, read_rope(fields)),) * num_layers(fields)


def windowed_layers(fields: ConfigFields, *, partial: bool = False) -> tuple[LayerKind, ...]:
    """Read layers that all share ``sliding_window`` (null: none) and a rope."""
    window = read_window(fields)
    require_layer_types(fields, FULL if window is None else SLIDING)
    return (LayerKind(window, read_rope(fields, partial=partial)),) * num_layers(fields)


def mixed_layers(
    fields: ConfigFields, types: Sequence[object], ropes: Sequence[Rope | None]
) -> tuple[LayerKind, ...]:
    """Make layers of the given types and ropes; sliding ones have ``sliding_window``."""
    window = read_window(fields)
    if SLIDING in types and window is None:
        raise fields.error(f"layer_types names {SLIDING!r}, but sliding_window is missing")
    return tuple(
        LayerKind(window if kind == SLIDING else None, rope)
        for kind, rope in zip(types, ropes, strict=True)
    )


def read_window(fields: ConfigFields) -> int | None:
    """Read ``sliding_window``; null is none."""
    return None if fields.get("sliding_window") is None else fields.positive_int("sliding_window")


def layer_types(fields: ConfigFields, default: Callable[[int], bool]) -> tuple[object, ...]:
    """Read ``layer_types``; without it, a layer is sliding where ``default`` of its index says."""
    count = num_layers(fields)
    found = fields.one_per_layer("layer_types", count, (SLIDING, FULL))
    if found is not None:
        return found
    return tuple(SLIDING if default(index) else FULL for index in range(count))


def switched_layer_types(
    fields: ConfigFields, default: Callable[[int], bool]
) -> tuple[object, ...]:
    """Read layer types of a family in which ``use_sliding_window`` must be true for a window."""
    is_on = fields.flag("use_sliding_window", False)
    has_window = is_on and fields.get("sliding_window") is not None
    types = layer_types(fields, lambda index: has_window and default(index))
    if SLIDING in types and not is_on:
        raise fields.error(f"layer_types names {SLIDING!r}, but use_sliding_window is false")
    return types


def require_layer_types(fields: ConfigFields, kind: str) -> None:
    """Refuse layer types that this family has no use for."""
    types = fields.get("layer_types")
    if types is None:
        return
    for value in types if isinstance(types, list | tuple) else [types]:
        if value != kind:
            raise fields.error(
                f"layer_types {value_text(value)} is not supported (supported: {kind!r})"
            )


def read_experts(fields: ConfigFields, num: int, inner_key: str, *, normalize: bool) -> Experts:
    """Read how many experts a token uses, and how wide they are."""
    per_token = fields.positive_int("num_experts_per_tok")
    return Experts(num, per_token, fields.positive_int(inner_key), normalize)
