"""Ladder: the sizes that one axis of a graph may have, and rules that space them.

Knows one axis at a time. Which axes are combined into graphs is the business of buckets and plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise
from types import MappingProxyType
from typing import Protocol

MAX_NUM_GRAPHS = 4096
"""Of a plan, and so sizes of an axis: far more than anyone can compile and warm up."""


class NoBucketError(ValueError):
    """A need is larger than every bucket of an axis.

    Attributes:
        axis: what was counted, for example ``num_batched_tokens``.
        need: the count that has no bucket.
        sizes: the sizes there are, ascending.
        largest: the last of them.
    """

    def __init__(self, axis: str, need: int, sizes: tuple[int, ...]) -> None:
        """Keep the need and the sizes; the text is made from them."""
        super().__init__(axis, need, sizes)
        self.axis = axis
        self.need = need
        self.sizes = sizes
        self.largest = sizes[-1]

    def __str__(self) -> str:
        """Return one line with the need, the limit and all sizes."""
        return (
            f"{self.axis} {self.need} has no bucket: "
            f"the largest is {self.largest}, of {list(self.sizes)}"
        )


def require_positive(name: str, value: object) -> int:
    """Return ``value`` if it is an integer of at least 1 (a bool is none), else raise ValueError.

    >>> require_positive("block_size", 16)
    16
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}")
    return value


@dataclass(frozen=True, slots=True)
class Ladder:
    """The sizes of one axis: positive integers, strictly increasing.

    Args:
        sizes: any sequence of integers; kept as a tuple.
        axis: what the sizes count, for error texts.

    Raises:
        ValueError: no sizes, not positive integers, or not strictly increasing.

    >>> ladder = Ladder((128, 256, 512), "num_batched_tokens")
    >>> [ladder.pick(n) for n in (1, 128, 129, 512)]
    [128, 128, 256, 512]
    >>> ladder.pick(513)
    Traceback (most recent call last):
    noria.bucketing.ladder.NoBucketError: num_batched_tokens 513 has no bucket: \
the largest is 512, of [128, 256, 512]
    """

    sizes: tuple[int, ...]
    axis: str = field(default="size", compare=False)

    def __post_init__(self) -> None:
        """Validate the sizes."""
        sizes = tuple(self.sizes)
        if not sizes:
            raise ValueError(f"{self.axis} needs at least one size")
        for size in sizes:
            require_positive(f"{self.axis} size", size)
        for before, after in pairwise(sizes):
            if after <= before:
                raise ValueError(
                    f"{self.axis} sizes must be strictly increasing, got {after} after {before}"
                )
        object.__setattr__(self, "sizes", sizes)

    def __iter__(self) -> Iterator[int]:
        """Iterate over the sizes, ascending."""
        return iter(self.sizes)

    def __len__(self) -> int:
        """Return the number of sizes."""
        return len(self.sizes)

    @property
    def largest(self) -> int:
        """The last size, which is the limit of the axis."""
        return self.sizes[-1]

    def pick(self, n: int) -> int:
        """Return the smallest size that holds ``n``; a size holds itself.

        Raises:
            NoBucketError: ``n`` is larger than every size.
            ValueError: ``n`` is not a positive integer.
        """
        require_positive(self.axis, n)
        for size in self.sizes:
            if n <= size:
                return size
        raise NoBucketError(self.axis, n, self.sizes)


def powers_of_two(minimum: int, maximum: int) -> tuple[int, ...]:
    """Double from ``minimum`` while below ``maximum``, then end with ``maximum`` itself.

    The default spacing of vLLM Neuron: the limit is a size even where no doubling meets it, and
    is the only size where the minimum is above it.

    >>> powers_of_two(128, 1000)
    (128, 256, 512, 1000)
    >>> powers_of_two(128, 100)
    (100,)
    """
    return exponential(minimum, maximum, 2)


def exponential(
    minimum: int, maximum: int, growth: float | Fraction, *, granularity: int = 1
) -> tuple[int, ...]:
    """Grow from ``minimum`` by a ratio, each step rounded up, then end with ``maximum``.

    Args:
        minimum: the first size, taken as it is.
        maximum: the last size, taken as it is.
        growth: ratio of neighbours, above 1; a float counts as the decimal number it prints.
        granularity: sizes between the ends are multiples of it.

    >>> exponential(128, 1024, 1.5, granularity=128)
    (128, 256, 384, 640, 1024)
    """
    require_positive("minimum", minimum)
    require_positive("maximum", maximum)
    require_positive("granularity", granularity)
    if isinstance(growth, bool) or not growth > 1 or growth == float("inf"):
        raise ValueError(f"growth must be a number above 1, got {growth!r}")
    ratio = Fraction(str(growth))
    sizes: list[int] = []
    size = minimum
    while size < maximum:
        sizes.append(size)
        grown = -(-size * ratio.numerator // ratio.denominator)
        size = -(-grown // granularity) * granularity
    return (*sizes, maximum)


def linear(minimum: int, maximum: int, step: int) -> tuple[int, ...]:
    """Take ``minimum``, every multiple of ``step`` between the ends, and ``maximum``.

    Raises:
        ValueError: an argument is not a positive integer, or there are more than MAX_NUM_GRAPHS
            sizes.

    >>> linear(1, 20, 8)
    (1, 8, 16, 20)
    """
    require_positive("minimum", minimum)
    require_positive("maximum", maximum)
    require_positive("step", step)
    if minimum >= maximum:
        return (maximum,)
    between = range((minimum // step + 1) * step, maximum, step)
    if len(between) + 2 > MAX_NUM_GRAPHS:
        raise ValueError(
            f"{len(between) + 2} sizes from {minimum} to {maximum} in steps of {step} are more "
            f"than {MAX_NUM_GRAPHS}"
        )
    return (minimum, *between, maximum)


@dataclass(frozen=True, slots=True)
class Axis:
    """What a spacing rule needs to know of an axis to choose its sizes by itself.

    Attributes:
        name: ``tokens`` or ``seqs``.
        minimum: the first size, clipped to the limit.
        granularity: multiples that growing sizes are rounded to.
        step: distance of evenly spaced sizes.
    """

    name: str
    minimum: int
    granularity: int
    step: int


TOKENS = Axis("tokens", minimum=128, granularity=128, step=256)
SEQS = Axis("seqs", minimum=1, granularity=4, step=8)

DEFAULT_GROWTH = Fraction(3, 2)
"""Ratio of the exponential rule: at worst a third of a graph is padding, not half as if doubled."""


class Spacing(Protocol):
    """A rule that fills an axis up to its limit; the last size is the limit."""

    def __call__(self, axis: Axis, limit: int, /) -> tuple[int, ...]:
        """Return the sizes of ``axis``, strictly increasing, ending with ``limit``."""


def _doubled(axis: Axis, limit: int) -> tuple[int, ...]:
    return powers_of_two(axis.minimum, limit)


def _grown(axis: Axis, limit: int) -> tuple[int, ...]:
    return exponential(axis.minimum, limit, DEFAULT_GROWTH, granularity=axis.granularity)


def _stepped(axis: Axis, limit: int) -> tuple[int, ...]:
    return linear(axis.minimum, limit, axis.step)


SPACING: Mapping[str, Spacing] = MappingProxyType(
    {"powers_of_two": _doubled, "exponential": _grown, "linear": _stepped}
)
"""Spacing rules by the name that a configuration uses.

>>> SPACING["powers_of_two"](SEQS, 6)
(1, 2, 4, 6)
"""
