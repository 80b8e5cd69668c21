"""What a step pays for of its requests' context: what is there, or what its graph has room for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from .cost import Floats

Prefix = Literal["exact", "bucketed", "max"]
"""Prefix that a prefill pays for: the live one, its bucket, or the largest bucket.

``exact`` holds only where the bound of the kernel's loop over keys is a run-time value.
"""
Extent = Literal["live", "bucket"]
"""What is read or computed: the context that is there, or all that the graph has room for."""


@dataclass(frozen=True, slots=True)
class DecodeReads:
    """What a decode step pays for.

    Attributes:
        num_bytes: keys and values that it reads.
        flop: scores that it computes.
    """

    num_bytes: Extent = "bucket"
    flop: Extent = "bucket"

    def to_mapping(self) -> dict[str, object]:
        """Return plain data that ``read`` turns into the same."""
        return {"num_bytes": self.num_bytes, "flop": self.flop}

    @classmethod
    def read(cls, given: object) -> DecodeReads:
        """Return what plain data says.

        Raises:
            ValueError: names the key, its value and what would fit.
        """
        if not isinstance(given, Mapping) or sorted(given) != ["flop", "num_bytes"]:
            raise ValueError(f"costs.reads: is {given!r:.60}; it must hold num_bytes and flop")
        for key, value in given.items():
            if value not in get_args(Extent):
                raise ValueError(f"costs.reads.{key}: is {value!r:.60}; it must be live or bucket")
        return cls(given["num_bytes"], given["flop"])


ALL_CONTEXT = DecodeReads()
"""All that the graph has room for."""


@dataclass(frozen=True, slots=True)
class ContextReads:
    """What the attention kernels of a backend pay for."""

    prefix: Prefix
    decode: DecodeReads


def charged_prefix(prefix_lens: ArrayLike, prefix: Prefix, buckets: Sequence[int]) -> Floats:
    """Return the prefix lengths to ask ``StepCosts.prefill_s`` for.

    Args:
        prefix_lens: cached tokens before each step's own; not negative.
        prefix: what the kernels pay for.
        buckets: ascending lengths that prefixes are padded to; 0 always is one of them where
            prefixes are ``bucketed``. Not read where they are ``exact``.

    Raises:
        ValueError: a prefix is negative, or longer than the largest bucket.

    >>> charged_prefix([0, 1, 512, 600], "bucketed", [512, 1024]).tolist()
    [0.0, 512.0, 512.0, 1024.0]
    >>> charged_prefix([0, 600], "max", [512, 1024]).tolist()
    [1024.0, 1024.0]
    """
    lens = np.asarray(prefix_lens, dtype=np.float64)
    if lens.size and not lens.min() >= 0:
        raise ValueError(f"a prefix of {lens.min():g} tokens is negative")
    if prefix == "exact":
        return lens
    sizes = np.array([0, *buckets], dtype=np.float64)
    if lens.size and lens.max() > sizes[-1]:
        raise ValueError(f"a prefix of {lens.max():g} tokens is above the largest, {sizes[-1]:g}")
    if prefix == "max":
        return np.full(lens.shape, sizes[-1])
    charged: Floats = sizes[np.searchsorted(sizes, lens)]
    return charged
