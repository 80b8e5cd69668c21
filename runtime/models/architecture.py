"""What a model is made of: sizes, rope and biases, read from Hugging Face ``config.json`` keys.

Covers the Llama family (Llama 2 and 3, SmolLM2). Whatever would change the result and is not
built is refused by name; nothing of the kind is skipped. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ..errors import ModelError
from ..value_text import value_text
from .config_fields import ConfigFields

SUPPORTED_MODEL_TYPES = ("llama",)
SUPPORTED_ARCHITECTURES = ("LlamaForCausalLM",)
SUPPORTED_ROPE_TYPES = ("default", "llama3")
DEFAULT_ROPE_THETA = 10000.0
MAX_LAYERS = 4096
MAX_VOCAB_SIZE = 2**20
"""Both are far beyond any trained model: names of layers and tokens are listed before weights."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: base and, for ``llama3``, how long wavelengths are stretched.

    ``llama3``: wavelengths above ``original_max_position_embeddings / low_freq_factor`` are
    stretched by ``factor``, those below ``.../high_freq_factor`` kept, between them blended.
    """

    theta: float = DEFAULT_ROPE_THETA
    kind: Literal["default", "llama3"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192

    def __post_init__(self) -> None:
        """Refuse a band of wavelengths that is empty or upside down."""
        if self.kind == "llama3" and self.low_freq_factor >= self.high_freq_factor:
            raise ModelError(
                f"rope: low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """Sizes and switches of one decoder; enough to name and shape every tensor."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope: Rope = Rope()
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    max_position_embeddings: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse head counts that do not divide and a head_dim that rope cannot halve."""
        if self.num_heads % self.num_kv_heads:
            raise ModelError(
                f"num_attention_heads {self.num_heads} is not a multiple of "
                f"num_key_value_heads {self.num_kv_heads}"
            )
        if self.head_dim % 2:
            raise ModelError(f"head_dim {self.head_dim} must be even: rope rotates halves")

    @classmethod
    def from_config(
        cls, config: Mapping[str, object], *, source: str = "config.json"
    ) -> Architecture:
        """Read ``config.json`` keys; missing optional keys take the defaults of Llama.

        Keys that a nested ``text_config`` holds count where the top level lacks them.
        ``pretraining_tp`` is ignored on purpose: it tells how training was split, and the sum
        over its slices is the same function. Required: vocab_size, hidden_size,
        intermediate_size, num_hidden_layers, num_attention_heads.

        Raises:
            ModelError: a value is missing, of the wrong type or impossible, or the model needs
                something that is not built; the text names ``source``, key and value.
        """
        fields = ConfigFields(_with_text_config(config), source)
        _require_supported(fields)
        try:
            return cls(**_read(fields))  # type: ignore[arg-type]
        except ModelError as error:
            if str(error).startswith(source):
                raise
            raise fields.error(str(error)) from None


def inverse_frequencies(architecture: Architecture) -> tuple[float, ...]:
    """Return the angle per position of each rotated pair: float64, ``head_dim / 2`` values."""
    rope, head_dim = architecture.rope, architecture.head_dim
    plain = [rope.theta ** (-2 * pair / head_dim) for pair in range(head_dim // 2)]
    if rope.kind == "default":
        return tuple(plain)
    return tuple(_llama3_frequency(frequency, rope) for frequency in plain)


def expected_tensors(architecture: Architecture) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor that the model needs, under Hugging Face names.

    A tied model has no ``lm_head.weight`` here.
    """
    arch = architecture
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (arch.vocab_size, arch.hidden_size)
    }
    for index in range(arch.num_layers):
        layer = _layer_tensors(arch)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["model.norm.weight"] = (arch.hidden_size,)
    if not arch.tie_word_embeddings:
        shapes["lm_head.weight"] = (arch.vocab_size, arch.hidden_size)
    return shapes


def _layer_tensors(arch: Architecture) -> dict[str, tuple[int, ...]]:
    q_size, kv_size = arch.num_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim
    hidden, inner = arch.hidden_size, arch.intermediate_size
    attention = {"q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden)}
    attention["o"] = (hidden, q_size)
    mlp = {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (hidden,)}
    shapes["post_attention_layernorm.weight"] = (hidden,)
    blocks = (("self_attn", attention, arch.attention_bias), ("mlp", mlp, arch.mlp_bias))
    for block, linears, biased in blocks:
        for name, shape in linears.items():
            shapes[f"{block}.{name}_proj.weight"] = shape
            if biased:
                shapes[f"{block}.{name}_proj.bias"] = shape[:1]
    return shapes


def _llama3_frequency(frequency: float, rope: Rope) -> float:
    """Stretch one frequency as Llama 3.1's published rope scaling does."""
    wavelength = 2 * math.pi / frequency
    original = rope.original_max_position_embeddings
    if wavelength < original / rope.high_freq_factor:
        return frequency
    if wavelength > original / rope.low_freq_factor:
        return frequency / rope.factor
    band = rope.high_freq_factor - rope.low_freq_factor
    keep = (original / wavelength - rope.low_freq_factor) / band
    return (1 - keep) * frequency / rope.factor + keep * frequency


def _with_text_config(config: Mapping[str, object]) -> Mapping[str, object]:
    nested = config.get("text_config")
    return {**nested, **config} if isinstance(nested, Mapping) else config


def _require_supported(fields: ConfigFields) -> None:
    """Refuse what would change the result and is not built."""
    model_type, classes = fields.get("model_type"), fields.get("architectures")
    names = classes if isinstance(classes, list | tuple) else [classes]
    if model_type is None and classes is None:
        raise fields.error(f"model_type is missing (supported: {_listed(SUPPORTED_MODEL_TYPES)})")
    if model_type is not None and model_type not in SUPPORTED_MODEL_TYPES:
        listed = _listed(SUPPORTED_MODEL_TYPES)
        raise fields.error(
            f"model_type {value_text(model_type)} is not supported (supported: {listed})"
        )
    if classes and not any(name in SUPPORTED_ARCHITECTURES for name in names):
        listed, shown = _listed(SUPPORTED_ARCHITECTURES), value_text(classes)
        raise fields.error(f"architectures {shown} is not supported (supported: {listed})")
    if fields.get("quantization_config"):
        method = (fields.block("quantization_config") or fields).get("quant_method")
        raise fields.error(
            f"quantization_config {value_text(method)} is not supported: use a checkpoint "
            "in float32, bfloat16 or float16, or a GGUF file"
        )
    _require_fixed(fields)


def _require_fixed(fields: ConfigFields) -> None:
    """Refuse values of keys that only one value fits."""
    fixed: dict[str, tuple[object, ...]] = {
        "hidden_act": (None, "silu"),
        "sliding_window": (None,),
        "partial_rotary_factor": (None, 1, 1.0),
        "is_encoder_decoder": (None, False),
    }
    for key, fitting in fixed.items():
        value = fields.get(key)
        if value not in fitting:
            shown = value_text(value)
            raise fields.error(f"{key} {shown} is not supported (supported: {fitting[-1]!r})")
    kinds = fields.get("layer_types")
    if isinstance(kinds, list | tuple):
        other = [kind for kind in kinds if kind != "full_attention"]
        if other:
            raise fields.error(
                f"layer_types {value_text(other[0])} is not supported (supported: 'full_attention')"
            )


def _read(fields: ConfigFields) -> dict[str, object]:
    num_heads = fields.positive_int("num_attention_heads")
    vocab_size = fields.positive_int("vocab_size", high=MAX_VOCAB_SIZE)
    return {
        "vocab_size": vocab_size,
        "hidden_size": fields.positive_int("hidden_size"),
        "intermediate_size": fields.positive_int("intermediate_size"),
        "num_layers": fields.positive_int("num_hidden_layers", high=MAX_LAYERS),
        "num_heads": num_heads,
        "num_kv_heads": fields.positive_int("num_key_value_heads", num_heads),
        "head_dim": _read_head_dim(fields, num_heads),
        "rms_norm_eps": fields.positive_float("rms_norm_eps", 1e-6),
        "rope": _read_rope(fields),
        "tie_word_embeddings": fields.flag("tie_word_embeddings", False),
        "attention_bias": fields.flag("attention_bias", False),
        "mlp_bias": fields.flag("mlp_bias", False),
        "max_position_embeddings": fields.positive_int("max_position_embeddings", 2048),
        "bos_token_id": fields.token_id("bos_token_id", vocab_size),
        "eos_token_ids": fields.token_ids("eos_token_id", vocab_size),
    }


def _read_head_dim(fields: ConfigFields, num_heads: int) -> int:
    hidden_size = fields.positive_int("hidden_size")
    if fields.get("head_dim") is None and hidden_size % num_heads:
        raise fields.error(
            f"hidden_size {hidden_size} is not a multiple of num_attention_heads {num_heads}, "
            "so head_dim must be given"
        )
    return fields.positive_int("head_dim", hidden_size // num_heads)


def _read_rope(fields: ConfigFields) -> Rope:
    """Read ``rope_scaling`` or its newer spelling ``rope_parameters``, which holds the theta."""
    theta = fields.positive_float("rope_theta", DEFAULT_ROPE_THETA)
    scaling, parameters = fields.block("rope_scaling"), fields.block("rope_parameters")
    if parameters is not None:
        theta = parameters.positive_float("rope_theta", theta)
    ropes = [_rope_of_block(block, theta) for block in (scaling, parameters) if block is not None]
    if len(set(ropes)) > 1:
        raise fields.error("rope_scaling and rope_parameters differ; keep one of them")
    return ropes[0] if ropes else Rope(theta)


def _rope_of_block(block: ConfigFields, theta: float) -> Rope:
    spellings = [block.get(key) for key in ("rope_type", "type") if block.get(key) is not None]
    if not spellings:
        spellings = ["default"] if set(block.values) <= {"rope_theta"} else [None]
    kind = spellings[0]
    if kind not in SUPPORTED_ROPE_TYPES or spellings.count(kind) != len(spellings):
        listed = _listed(SUPPORTED_ROPE_TYPES)
        shown = " and ".join(value_text(spelling) for spelling in spellings)
        raise block.error(f"rope type {shown} is not supported (supported: {listed})")
    llama3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    known = {"rope_type", "type", "rope_theta", *(llama3 if kind == "llama3" else ())}
    unused = sorted((key for key in block.values if key not in known), key=str)
    if block.get("partial_rotary_factor") in (1, 1.0):
        unused.remove("partial_rotary_factor")
    if unused:
        value = value_text(block.get(unused[0]))
        raise block.error(f"{unused[0]} {value} has no meaning for {kind!r}")
    if kind == "default":
        return Rope(theta)
    factor, low, high = (block.positive_float(key) for key in llama3[:3])
    return Rope(theta, "llama3", factor, low, high, block.positive_int(llama3[3]))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names)
