"""Reading rope blocks of ``config.json``: ``rope_scaling`` and its newer ``rope_parameters``.

A block is read whole or refused: a key that its kind gives no meaning to is an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

from ..value_text import value_text
from .config_fields import MAX_INT32, ConfigFields
from .rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
    Scaling,
    YarnScaling,
)

SPELLINGS = ("rope_type", "type")
OLDER_NAMES = MappingProxyType({"su": "longrope"})
"""Phi-3's first files call longrope so."""


def read_rope(fields: ConfigFields, *, partial: bool = False) -> Rope:
    """Read the rope that all layers share: theta, scaling and (if ``partial``) the rotated share.

    Raises:
        ModelError: a block holds what its kind gives no meaning to, or two blocks differ.
    """
    theta = fields.positive_float("rope_theta")
    scaling, parameters = fields.block("rope_scaling"), fields.block("rope_parameters")
    if parameters is not None:
        theta = parameters.positive_float("rope_theta", theta)
    blocks = [block for block in (scaling, parameters) if block is not None]
    ropes = [
        rope_of_block(block, fields, block.positive_float("rope_theta", theta), partial=partial)
        for block in blocks
    ]
    if len(set(ropes)) > 1:
        raise fields.error("rope_scaling and rope_parameters differ; keep one of them")
    share = _share([fields], partial=partial)
    return ropes[0] if ropes else Rope(theta, None, share)


def rope_of_block(
    block: ConfigFields, fields: ConfigFields, theta: float, *, partial: bool = False
) -> Rope:
    """Read one block; ``fields`` is the whole configuration, ``theta`` its base.

    Raises:
        ModelError: the kind is unknown or a key has no meaning for it.
    """
    kind = _kind(block)
    read, keys = KINDS[kind]
    known = {*SPELLINGS, "rope_theta", *keys}
    unused = [key for key in block.values if key not in known and key != "partial_rotary_factor"]
    if unused:
        first = min(unused, key=str)
        value = value_text(block.get(first))
        raise block.error(f"{first} {value} has no meaning for {kind!r}")
    try:
        scaling = read(block, fields)
    except ArithmeticError:
        raise block.error("its numbers are so large or small that it has no meaning") from None
    return Rope(theta, scaling, _share([block, fields], partial=partial))


def _kind(block: ConfigFields) -> str:
    given = [block.get(key) for key in SPELLINGS if block.get(key) is not None]
    if not given and set(block.values) <= {"rope_theta", "partial_rotary_factor"}:
        return "default"
    kinds = {OLDER_NAMES.get(name, name) if isinstance(name, str) else "" for name in given}
    kind = kinds.pop() if len(kinds) == 1 else ""
    if kind not in KINDS:
        shown = " and ".join(value_text(name) for name in given) or "None"
        raise block.error(f"rope type {shown} is not supported (supported: {', '.join(KINDS)})")
    return kind


def _share(places: list[ConfigFields], *, partial: bool) -> float:
    """Read the share of a head that rotates from the first place that names it."""
    for place in places:
        share = place.positive_float("partial_rotary_factor", 1.0)
        if share > 1 or (share != 1 and not partial):
            raise place.error(f"partial_rotary_factor {share} is not supported (supported: 1.0)")
        if place.get("partial_rotary_factor") is not None:
            return share
    return 1.0


def _default(block: ConfigFields, fields: ConfigFields) -> Scaling | None:
    return None


def _linear(block: ConfigFields, fields: ConfigFields) -> Scaling:
    return LinearScaling(_factor(block))


def _llama3(block: ConfigFields, fields: ConfigFields) -> Scaling:
    low, high = (block.positive_float(f"{name}_freq_factor") for name in ("low", "high"))
    original = block.positive_int("original_max_position_embeddings")
    return Llama3Scaling(block.positive_float("factor"), low, high, original)


def _dynamic(block: ConfigFields, fields: ConfigFields) -> Scaling:
    return DynamicScaling(_factor(block), fields.positive_int("max_position_embeddings"))


def _yarn(block: ConfigFields, fields: ConfigFields) -> Scaling:
    factor = _factor(block)
    return YarnScaling(
        factor,
        _original(block, fields),
        block.positive_float("attention_factor", _yarn_attention_factor(block, factor)),
        block.positive_float("beta_fast", 32.0),
        block.positive_float("beta_slow", 1.0),
        block.flag("truncate", True),
    )


def _yarn_attention_factor(block: ConfigFields, factor: float) -> float:
    """Return the temperature that the paper fits, or the quotient of two of them."""
    scales = [block.get(key) for key in ("mscale", "mscale_all_dim")]
    if scales == [None, None]:
        return _temperature(factor, 1.0)
    over, under = (block.positive_float(key) for key in ("mscale", "mscale_all_dim"))
    return _temperature(factor, over) / _temperature(factor, under)


def _temperature(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(block: ConfigFields, fields: ConfigFields) -> Scaling:
    original = _original(block, fields)
    if original < 2:
        raise block.error(f"{ORIGINAL} {original} must be at least 2: its logarithm divides")
    reached = fields.positive_int("max_position_embeddings") / original
    factor = block.positive_float("factor", reached)
    fitted = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return LongRopeScaling(
        block.positive_floats("short_factor"),
        block.positive_floats("long_factor"),
        original,
        block.positive_float("attention_factor", fitted),
    )


def _factor(block: ConfigFields) -> float:
    """Read how many times further positions reach."""
    factor = block.positive_float("factor")
    if factor < 1:
        raise block.error(f"factor {factor} must be at least 1")
    if factor > MAX_INT32:
        raise block.error(f"factor {factor} must be at most 2**31 - 1, the last position")
    return factor


def _original(block: ConfigFields, fields: ConfigFields) -> int:
    """Return the context of training: of the block, of the configuration, or its positions."""
    key = "original_max_position_embeddings"
    positions = fields.positive_int("max_position_embeddings")
    return block.positive_int(key, fields.positive_int(key, positions))


ORIGINAL = "original_max_position_embeddings"
Reader = Callable[[ConfigFields, ConfigFields], Scaling | None]
KINDS: Mapping[str, tuple[Reader, tuple[str, ...]]] = MappingProxyType(
    {
        "default": (_default, ()),
        "linear": (_linear, ("factor",)),
        "llama3": (_llama3, ("factor", "low_freq_factor", "high_freq_factor", ORIGINAL)),
        "yarn": (
            _yarn,
            (
                "factor",
                ORIGINAL,
                "attention_factor",
                "beta_fast",
                "beta_slow",
                "mscale",
                "mscale_all_dim",
                "truncate",
            ),
        ),
        "dynamic": (_dynamic, ("factor",)),
        "longrope": (
            _longrope,
            ("factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"),
        ),
    }
)
