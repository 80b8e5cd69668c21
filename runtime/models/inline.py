"""Architectures written into a configuration: ``config.json`` keys and a seed for weights.

Imports no torch, so that a configuration can be checked without it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from ..errors import ModelError
from ..sampling_params import MAX_SEED
from ..value_text import key_text, value_text
from .architecture import Architecture

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


def read_inline(mapping: Mapping[str, object], source: str = "model") -> tuple[Architecture, int]:
    """Return the architecture and the seed of its random weights (0 if not written).

    ``model_type`` may be left out. Unlike in a checkpoint's ``config.json``, where other
    programs have their keys too, a key that nothing reads is an error.

    Args:
        mapping: keys as in ``config.json``, and ``seed``.
        source: key path of the mapping, the start of every error.

    Raises:
        ModelError: a key is unknown, or a value is missing or does not fit.
    """
    for key in mapping:
        if key not in INLINE_KEYS:
            raise ModelError(f"{source}.{key_text(str(key))}: unknown key; {_fits(str(key))}")
    seed = mapping.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        fits = "must be an integer from 0 to 2**64 - 1"
        raise ModelError(f"{source}.seed: is {value_text(seed)}; {fits}")
    return Architecture.from_config({"model_type": "llama", **mapping}, source=source), seed


def _fits(key: str) -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), INLINE_KEYS, 1)
    return f"did you mean {near[0]}?" if near else f"the keys are {', '.join(INLINE_KEYS)}"
