"""Seeded random weights for architectures written into a configuration file."""

from __future__ import annotations

import difflib
import hashlib
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from ..errors import ModelError
from .architecture import Architecture, expected_tensors

INLINE_KEYS = (
    "architectures",
    "attention_bias",
    "bos_token_id",
    "eos_token_id",
    "head_dim",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "mlp_bias",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "seed",
    "sliding_window",
    "tie_word_embeddings",
    "vocab_size",
)
NOISE = 0.1
GAINS: Mapping[str, float] = MappingProxyType({"q_proj": 3.0, "k_proj": 3.0, "embed_tokens": 0.3})


class RandomTensors(Mapping[str, Tensor]):
    """fp32 tensors made when they are asked for; a function of (seed, name, shape) alone.

    Matrices are normal with variance 1 / columns, so activations keep their size. Queries and
    keys are larger, so that attention picks tokens instead of averaging them, and embeddings
    smaller, so that a tied model does not repeat its last token: greedy text then varies with the
    whole context. Norms are 1 and biases 0, each with a little noise.
    """

    def __init__(self, architecture: Architecture, seed: int) -> None:
        """Stand for every tensor of ``architecture``."""
        self._shapes = expected_tensors(architecture)
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        """Make one tensor."""
        shape = self._shapes[name]
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        values = torch.randn(shape, generator=generator, dtype=torch.float32)
        if len(shape) > 1:
            return values * (_gain(name) / math.sqrt(shape[-1]))
        return values * NOISE + (0.0 if name.endswith(".bias") else 1.0)

    def __contains__(self, name: object) -> bool:
        """Tell without making the tensor."""
        return name in self._shapes

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._shapes)

    def __len__(self) -> int:
        """Count tensors."""
        return len(self._shapes)


def _gain(name: str) -> float:
    return next((gain for part, gain in GAINS.items() if part in name), 1.0)


def read_inline(mapping: Mapping[str, object], source: str) -> tuple[Architecture, int]:
    """Read an inline model: ``config.json`` keys and ``seed`` (default 0).

    ``model_type`` may be left out. Unlike a checkpoint's file, unknown keys are errors.

    Raises:
        ModelError: a key is unknown, or a value does not fit.
    """
    for key in mapping:
        if key not in INLINE_KEYS:
            near = difflib.get_close_matches(str(key), INLINE_KEYS, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f" (known: {', '.join(INLINE_KEYS)})"
            raise ModelError(f"{source}: unknown key {key!r}{hint}")
    seed = mapping.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ModelError(f"{source}: seed must be an integer from 0, not {seed!r}")
    config = {"model_type": "llama", **mapping}
    return Architecture.from_config(config, source=source), seed
