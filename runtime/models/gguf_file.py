"""GGUF files, read as Hugging Face configuration and tensors.

Where GGUF stores rows of queries and keys in pairs, they are put back in half-split order here,
and norm weights lose the offset that they are stored with. Metadata that would change the result
and is not understood is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..value_text import value_text
from .gguf_families import NEUTRAL_VALUES, READ_KEYS, TOP_NAMES, find_family
from .gguf_metadata import GgufMetadata, is_integer
from .gguf_rope import rope_config

Values = NDArray[np.float32]


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
        self._fields = GgufMetadata(path, self.metadata)
        self._tensors: dict[str, Any] = {tensor.name: tensor for tensor in reader.tensors}
        self._family = find_family(self._fields)
        self._require_understood()

    def error(self, message: str) -> ModelError:
        """Build the error for this file."""
        return self._fields.error(message)

    def config(self) -> dict[str, object]:
        """Return the model's ``config.json`` content.

        Raises:
            ModelError: metadata is missing, or rope factors are of no known kind.
        """
        fields, family = self._fields, self._family
        num_heads = fields.size("attention.head_count")
        config: dict[str, object] = {
            "model_type": family.model_type,
            "architectures": [family.class_name],
            "vocab_size": self._shape("token_embd.weight")[0],
            "hidden_size": fields.size("embedding_length"),
            "intermediate_size": fields.size("feed_forward_length"),
            "num_hidden_layers": fields.size("block_count"),
            "num_attention_heads": num_heads,
            "num_key_value_heads": fields.size("attention.head_count_kv", num_heads),
            "head_dim": fields.head_dim(),
            "rms_norm_eps": fields.number("attention.layer_norm_rms_epsilon"),
            "rope_theta": fields.number("rope.freq_base", 10000.0),
            "max_position_embeddings": fields.size("context_length"),
            "tie_word_embeddings": "output.weight" not in self._tensors,
            "attention_bias": "blk.0.attn_q.bias" in self._tensors,
            "mlp_bias": "blk.0.ffn_up.bias" in self._tensors,
            "bos_token_id": self.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": list(self.eos_token_ids()),
        }
        config |= family.read(fields)
        names = [name for name in family.extra_tensors if name in self._tensors]
        divisors = {name: self._dequantize(self._tensors[name]) for name in names}
        return config | rope_config(fields, config, divisors)

    def eos_token_ids(self) -> tuple[int, ...]:
        """Return the ids that end a text, a turn or a message."""
        keys = ("eos_token_id", "eot_token_id", "eom_token_id")
        found = {
            f"tokenizer.ggml.{key}": self.metadata.get(f"tokenizer.ggml.{key}") for key in keys
        }
        for key, token in found.items():
            if token is not None and not is_integer(token):
                raise self.error(f"metadata {key} is {value_text(token)}; must be a token id")
        return tuple(dict.fromkeys(token for token in found.values() if token is not None))

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by Hugging Face name, in file order."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name in self._weights():
            names, shape = self._hf_names(name), self._shape(name)
            shapes |= dict.fromkeys(names, shape if len(names) == 1 else shape[1:])
        return shapes

    def tensors(self) -> Iterator[tuple[str, Values]]:
        """Yield Hugging Face name and dequantized fp32 values of each tensor, in file order."""
        orders = self._row_orders()
        for name in self._weights():
            names, values = self._hf_names(name), self._dequantize(self._tensors[name])
            num_heads = orders.get(name.split(".")[-2])
            if num_heads and len(values) % (2 * num_heads):
                raise self.error(f"tensor {name} has {len(values)} rows for {num_heads} heads")
            if num_heads:
                values = half_split_rows(values, num_heads)
            if name.endswith("_norm.weight"):
                values = values - np.float32(self._family.norm_offset)
            yield from zip(names, values if len(names) > 1 else [values], strict=True)

    def _weights(self) -> list[str]:
        return [name for name in self._tensors if name not in self._family.extra_tensors]

    def _row_orders(self) -> dict[str, int]:
        """Return how many heads the rows of a tensor are of, where they are stored in pairs."""
        if not self._family.has_paired_rows:
            return {}
        num_heads = self._fields.size("attention.head_count")
        num_kv_heads = self._fields.size("attention.head_count_kv", num_heads)
        return {"attn_q": num_heads, "attn_k": num_kv_heads}

    def _dequantize(self, tensor: Any) -> Values:
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, ValueError) as error:
            raise self.error(f"{tensor.name}: {error}") from None
        return np.ascontiguousarray(values, dtype=np.float32)

    def _require_understood(self) -> None:
        prefix = self._fields.key("")
        for key, value in self.metadata.items():
            name = key.removeprefix(prefix)
            if name == key or name in READ_KEYS or name in self._family.keys:
                continue
            if value not in NEUTRAL_VALUES.get(name, ()):
                raise self.error(f"metadata {key} = {value_text(value)} is not supported")

    def _hf_names(self, name: str) -> list[str]:
        """Return the Hugging Face name of a tensor, or one per expert that it holds."""
        layer = re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name)
        names = self._family.layer_names
        if layer and layer[2] in names:
            hf_name = f"model.layers.{layer[1]}.{names[layer[2]]}.{layer[3]}"
            num = self._shape(name)[0] if "{}" in hf_name else 1
            return [hf_name.format(index) for index in range(num)]
        stem, _, kind = name.rpartition(".")
        if stem in TOP_NAMES and kind in ("weight", "bias"):
            return [f"{TOP_NAMES[stem]}.{kind}"]
        raise self.error(f"tensor {name} is not supported")

    def _shape(self, name: str) -> tuple[int, ...]:
        if name not in self._tensors:
            raise self.error(f"tensor {name} is missing")
        return tuple(int(size) for size in reversed(self._tensors[name].shape))


def half_split_rows(values: Values, num_heads: int) -> Values:
    """Undo the pairwise order of query or key rows: ``[H*D, ...]`` in, half-split order out.

    A file holds a head's rows as 0, D/2, 1, D/2 + 1, ... .
    """
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)
