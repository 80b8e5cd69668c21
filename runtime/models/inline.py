"""Architectures written into a configuration: ``config.json`` keys and a seed for weights.

Imports no torch, so that a configuration can be checked without it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from ..errors import ModelError
from ..sampling_params import MAX_SEED
from ..value_text import key_text, value_text
from .architecture import Architecture
from .families import FAMILIES, read_architecture
from .families.family import COMMON_KEYS

INLINE_KEYS = tuple(sorted({"seed", *COMMON_KEYS}.union(*(f.keys for f in FAMILIES.values()))))


def read_inline(mapping: Mapping[str, object], source: str = "model") -> tuple[Architecture, int]:
    """Return the architecture and the seed of its random weights (0 if not written).

    ``model_type`` may be left out: a Llama. Unlike in a checkpoint's ``config.json``, where other
    programs have their keys too, a key that the family does not read is an error.

    Args:
        mapping: keys as in ``config.json``, and ``seed``.
        source: key path of the mapping, the start of every error.

    Raises:
        ModelError: a key is unknown, or a value is missing or does not fit.
    """
    config = {"model_type": "llama", **mapping}
    seed = config.pop("seed", 0)
    _require_known_keys(config, source)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        fits = "must be an integer from 0 to 2**64 - 1"
        raise ModelError(f"{source}.seed: is {value_text(seed)}; {fits}")
    return read_architecture(config, source=source), seed


def _require_known_keys(config: Mapping[str, object], source: str) -> None:
    """Refuse keys that nothing reads, and those of other families, which would count no more."""
    model_type = config["model_type"]
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    known = INLINE_KEYS if family is None else ("seed", *COMMON_KEYS, *family.keys)
    for key in config:
        if key not in INLINE_KEYS:
            fits = _fits(str(key), known)
            raise ModelError(f"{source}.{key_text(str(key))}: unknown key; {fits}")
        if key not in known:
            raise ModelError(f"{source}.{key}: has no meaning for model_type {model_type!r}")


def _fits(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key.lower().replace("-", "_"), known, 1)
    return f"did you mean {near[0]}?" if near else f"the keys are {', '.join(sorted(known))}"
