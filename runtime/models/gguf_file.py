"""GGUF files of the ``llama`` architecture, read as Hugging Face configuration and tensors.

GGUF stores query and key rows interleaved for another rope convention; they are put back in
half-split order here. Metadata that would change the result and is not understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..value_text import value_text
from .architecture import Architecture
from .families import read_architecture

TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"
READ_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "vocab_size",
)
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scale_linear": (1.0,),
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "attention.sliding_window": (0,),
}


class GgufFile:
    """An opened GGUF file: ``metadata`` by key, and what it means in Hugging Face terms."""

    def __init__(self, path: Path) -> None:
        """Read the metadata of ``path``.

        Raises:
            ModelError: not a GGUF file, damaged, or of another architecture.
        """
        self.path = path
        try:
            reader: Any = gguf.GGUFReader(path)
            # Strings are decoded here; bytes that are not UTF-8 are a ValueError.
            self.metadata: dict[str, Any] = {k: f.contents() for k, f in reader.fields.items()}
        except (ValueError, LookupError, TypeError, ArithmeticError, OSError) as error:
            # A key written twice is a KeyError whose text names it.
            reason = " ".join(str(error).split())
            raise ModelError(f"{path}: not a readable GGUF file: {reason}") from None
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        name = self.metadata.get("general.architecture")
        if name != "llama":
            raise self.error(f"architecture {name!r} is not supported (supported: llama)")
        self._require_understood()

    def error(self, message: str) -> ModelError:
        """Build the error for this file."""
        return ModelError(f"{self.path}: {message}")

    def config(self) -> dict[str, object]:
        """Return the model's ``config.json`` content.

        Raises:
            ModelError: metadata is missing, or rope factors are of no known kind.
        """
        num_heads = self._size("attention.head_count")
        hidden_size = self._size("embedding_length")
        config: dict[str, object] = {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": self._shape("token_embd.weight")[0],
            "hidden_size": hidden_size,
            "intermediate_size": self._size("feed_forward_length"),
            "num_hidden_layers": self._size("block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": self._size("attention.head_count_kv", num_heads),
            "head_dim": self._head_dim(hidden_size, num_heads),
            "rms_norm_eps": self._number("attention.layer_norm_rms_epsilon"),
            "rope_theta": self._number("rope.freq_base", 10000.0),
            "max_position_embeddings": self._size("context_length"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": list(self.eos_token_ids()),
        }
        if ROPE_FACTORS in self._tensors:
            config["rope_scaling"] = self._rope_scaling(config)
        return config

    def eos_token_ids(self) -> tuple[int, ...]:
        """Return the ids that end a text, a turn or a message."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = {
            f"tokenizer.ggml.{key}": self.metadata.get(f"tokenizer.ggml.{key}") for key in keys
        }
        for key, token in found.items():
            if token is not None and not _is_integer(token):
                raise self.error(f"metadata {key} is {value_text(token)}; must be a token id")
        return tuple(dict.fromkeys(token for token in found.values() if token is not None))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by Hugging Face name, in file order."""
        return {self._hf_name(n): self._shape(n) for n in self._tensors if n != ROPE_FACTORS}

    def tensors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Yield Hugging Face name and dequantized fp32 values of each tensor, in file order."""
        undo = self._row_orders()
        for name, tensor in self._tensors.items():
            if name == ROPE_FACTORS:
                continue
            hf_name, values = self._hf_name(name), self._dequantize(tensor)
            num_heads = undo.get(name.split(".")[-2])
            if num_heads and len(values) % (2 * num_heads):
                raise self.error(f"tensor {name} has {len(values)} rows for {num_heads} heads")
            yield hf_name, half_split_rows(values, num_heads) if num_heads else values

    def _row_orders(self) -> dict[str, int]:
        num_heads = self._size("attention.head_count")
        return {"attn_q": num_heads, "attn_k": self._size("attention.head_count_kv", num_heads)}

    def _dequantize(self, tensor: Any) -> NDArray[np.float32]:
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise self.error(f"{tensor.name}: {error}") from None
        return np.ascontiguousarray(values, dtype=np.float32)

    def _require_understood(self) -> None:
        for key, value in self.metadata.items():
            name = key.removeprefix("llama.")
            if name == key or name in READ_KEYS:
                continue
            if value not in NEUTRAL_VALUES.get(name, ()):
                raise self.error(f"metadata {key} = {value_text(value)} is not supported")

    def _hf_name(self, name: str) -> str:
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        if layer and layer[2] in LAYER_NAMES:
            return f"model.layers.{layer[1]}.{LAYER_NAMES[layer[2]]}.{layer[3]}"
        stem, _, kind = name.rpartition(".")
        if stem in TOP_NAMES and kind in ("weight", "bias"):
            return f"{TOP_NAMES[stem]}.{kind}"
        raise self.error(f"tensor {name} is not supported")

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise self.error(f"tensor {name} is missing")
        return tuple(int(size) for size in reversed(self._tensors[name].shape))

    def _value(self, key: str, default: object = None) -> Any:
        value = self.metadata.get(f"llama.{key}", default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.error(f"metadata llama.{key} differs by layer, which is not supported")
            value = value[0]
        if value is None:
            raise self.error(f"metadata llama.{key} is missing")
        return value

    def _size(self, key: str, default: int | None = None) -> int:
        value = self._value(key, default)
        if not _is_integer(value) or value < 1:
            shown = value_text(value)
            raise self.error(f"metadata llama.{key} is {shown}; must be a positive integer")
        return int(value)

    def _number(self, key: str, default: float | None = None) -> float:
        """Read a float that the file holds in fp32 as the decimal that was meant (1e-05)."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(f"metadata llama.{key} is {value_text(value)}; must be a number")
        return float(str(np.float32(value)))

    def _head_dim(self, hidden_size: int, num_heads: int) -> int:
        head_dim = self._size("attention.key_length", hidden_size // num_heads)
        for key in ("attention.value_length", "rope.dimension_count"):
            if self._size(key, head_dim) != head_dim:
                raise self.error(f"llama.{key} {self._size(key)} differs from head_dim {head_dim}")
        return head_dim

    def _rope_scaling(self, config: dict[str, object]) -> dict[str, object]:
        """Find the llama3 scaling whose frequencies the file's divisors are."""
        factors = self._dequantize(self._tensors[ROPE_FACTORS]).ravel()
        plain = read_architecture(config, source=str(self.path))
        scaling: dict[str, object] = {
            "rope_type": "llama3",
            "factor": float(factors.max(initial=0.0)),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
        scaled = read_architecture({**config, "rope_scaling": scaling})
        wanted = np.divide(_frequencies(plain), _frequencies(scaled))
        if factors.shape != wanted.shape or not np.allclose(factors, wanted, rtol=1e-4):
            raise self.error(
                f"{ROPE_FACTORS} is not the rope scaling of Llama 3, which alone is supported"
            )
        return scaling


def _frequencies(architecture: Architecture) -> tuple[float, ...]:
    (rope,) = architecture.ropes
    return rope.frequencies(architecture.head_dim, architecture.max_position_embeddings)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def half_split_rows(values: NDArray[np.float32], num_heads: int) -> NDArray[np.float32]:
    """Undo the pairwise order of query or key rows: ``[H*D, ...]`` in, half-split order out.

    A file holds a head's rows as 0, D/2, 1, D/2 + 1, ... .
    """
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)
