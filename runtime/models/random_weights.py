"""Seeded random weights for architectures written into a configuration file."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .architecture import Architecture, expected_tensors

NOISE = 0.1
GAINS: Mapping[str, float] = MappingProxyType(
    {
        "q_proj": 3.0,
        "k_proj": 3.0,
        "qkv_proj": 3.0,
        "q_norm": 3.0,
        "k_norm": 3.0,
        "embed_tokens": 0.3,
    }
)


class RandomTensors(Mapping[str, Tensor]):
    """fp32 tensors made when they are asked for; a function of (seed, name, shape) alone.

    Matrices are normal with variance 1 / columns, so activations keep their size. Queries and
    keys are larger, so that attention picks tokens instead of averaging them, and embeddings
    smaller, so that a tied model does not repeat its last token: greedy text then varies with the
    whole context. Norms (with their offset) are 1 and biases 0, each with a little noise; norms
    of queries and keys are larger where there are any, for the same reason as their projections.
    """

    def __init__(self, architecture: Architecture, seed: int) -> None:
        """Stand for every tensor of ``architecture``."""
        self._shapes = expected_tensors(architecture)
        self._norm_offset = architecture.norm_offset
        self._seed = seed

    def __getitem__(self, name: str) -> Tensor:
        """Make one tensor."""
        shape = self._shapes[name]
        digest = hashlib.sha256(f"{self._seed}:{name}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
        values = torch.randn(shape, generator=generator, dtype=torch.float32)
        if len(shape) > 1:
            return values * (_gain(name) / math.sqrt(shape[-1]))
        return values * NOISE + (0.0 if name.endswith(".bias") else self._norm_mean(name))

    def _norm_mean(self, name: str) -> float:
        return _gain(name) - self._norm_offset

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
