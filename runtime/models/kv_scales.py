"""Scales of an FP8 KV cache, as checkpoints hold them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KVScales:
    """What the stored keys and values of one layer are multiplied by when they are read."""

    k: float = 1.0
    v: float = 1.0
