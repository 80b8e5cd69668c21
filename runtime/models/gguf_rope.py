"""Rope scaling of GGUF files, which hold frequencies' divisors where others hold parameters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ..value_text import value_text
from .architecture import Architecture
from .families import read_architecture
from .gguf_metadata import GgufMetadata

LLAMA3, LONG, SHORT = (
    "rope_freqs.weight",
    "rope_factors_long.weight",
    "rope_factors_short.weight",
)


def rope_config(
    metadata: GgufMetadata,
    config: Mapping[str, object],
    divisors: Mapping[str, NDArray[np.float32]],
) -> dict[str, object]:
    """Return the rope keys of ``config.json``.

    Args:
        metadata: of the file.
        config: the other keys of ``config.json``.
        divisors: tensors of the file that divide frequencies, by their names.

    Raises:
        ModelError: the scaling is of a kind that is not supported.
    """
    found: dict[str, object] = _partial(metadata)
    key, factor_key = (metadata.key(f"rope.scaling.{name}") for name in ("type", "factor"))
    kind, factor = metadata.values.get(key, "none"), metadata.values.get(factor_key, 1.0)
    has_long = LONG in divisors or SHORT in divisors
    if kind not in _fitting_kinds(has_long=has_long, has_llama3=LLAMA3 in divisors):
        raise metadata.error(f"metadata {key} = {value_text(kind)} is not supported")
    if LLAMA3 in divisors:
        found["rope_scaling"] = _llama3(metadata, config, divisors[LLAMA3].ravel())
    elif has_long:
        found |= _longrope(metadata, divisors)
    elif kind == "linear":
        scaling = {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
        found["rope_scaling"] = scaling
    elif factor not in (0.0, 1.0):
        raise metadata.error(f"metadata {factor_key} = {value_text(factor)} is not supported")
    attention_key = metadata.key("rope.scaling.attn_factor")
    attention = metadata.values.get(attention_key, 1.0)
    if not has_long and attention not in (0, 1.0):
        raise metadata.error(
            f"metadata {attention_key} = {value_text(attention)} is not supported without "
            f"{LONG} and {SHORT}"
        )
    return found


def _fitting_kinds(*, has_long: bool, has_llama3: bool) -> tuple[str, ...]:
    """Return the kinds of scaling that go with the divisors of a file."""
    if has_long:
        return ("none", "longrope")
    return ("none",) if has_llama3 else ("none", "linear")


def _partial(metadata: GgufMetadata) -> dict[str, object]:
    """Read how much of a head rotates, which only some families may choose."""
    head_dim = metadata.head_dim()
    rotary_dim = metadata.size("rope.dimension_count", head_dim)
    if rotary_dim == head_dim:
        return {}
    if metadata.architecture != "phi3" or rotary_dim > head_dim:
        key = metadata.key("rope.dimension_count")
        raise metadata.error(f"{key} {rotary_dim} differs from head_dim {head_dim}")
    return {"partial_rotary_factor": rotary_dim / head_dim}


def _longrope(
    metadata: GgufMetadata, divisors: Mapping[str, NDArray[np.float32]]
) -> dict[str, object]:
    for name in (LONG, SHORT):
        if name not in divisors:
            raise metadata.error(f"tensor {name} is missing, though the other one is there")
    scaling: dict[str, object] = {
        "rope_type": "longrope",
        "short_factor": divisors[SHORT].ravel().tolist(),
        "long_factor": divisors[LONG].ravel().tolist(),
    }
    if metadata.has("rope.scaling.attn_factor"):
        scaling["attention_factor"] = metadata.number("rope.scaling.attn_factor")
    original = metadata.size("rope.scaling.original_context_length")
    return {"rope_scaling": scaling, "original_max_position_embeddings": original}


def _llama3(
    metadata: GgufMetadata, config: Mapping[str, object], factors: NDArray[np.float32]
) -> dict[str, object]:
    """Find the llama3 scaling whose frequencies the file's divisors are."""
    plain = read_architecture(config, source=str(metadata.path))
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
        raise metadata.error(
            f"{LLAMA3} is not the rope scaling of Llama 3, which alone is supported"
        )
    return scaling


def _frequencies(architecture: Architecture) -> tuple[float, ...]:
    (rope,) = architecture.ropes
    return rope.frequencies(architecture.head_dim, architecture.max_position_embeddings)
