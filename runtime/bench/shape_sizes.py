"""Which shapes are measured: those of a plan, and a geometric handful more. Integers only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ...bucketing import round_up
from ..errors import ConfigError

MIN_PREFILL_TOKENS = 16
MAX_NUM_HALVINGS = 7
CONTEXT_SHARES = (16, 4, 1)
"""Contexts of decode steps, and of prefixes but the first: the longest over each of these."""

Fits = Callable[[int, int, int], bool]
"""Whether so many requests, cached tokens of each and new tokens of each fit the cache."""


@dataclass(frozen=True, slots=True)
class ShapeSizes:
    """Sizes of the graphs to measure, ascending.

    Attributes:
        num_tokens: rows of prefill graphs.
        num_seqs: requests of decode graphs.
    """

    num_tokens: tuple[int, ...]
    num_seqs: tuple[int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Shape:
    """A full step to measure.

    Attributes:
        is_decode: else a prefill of one request.
        size: tokens of a prefill step, requests of a decode step.
        num_computed: cached tokens of each request.
    """

    is_decode: bool
    size: int
    num_computed: int

    @property
    def num_seqs(self) -> int:
        """Requests."""
        return self.size if self.is_decode else 1

    @property
    def num_new(self) -> int:
        """Tokens that each request runs."""
        return 1 if self.is_decode else self.size

    @property
    def context(self) -> int:
        """As a cost table counts it: the prefix of a prefill, all tokens of a decode step."""
        return self.num_computed + (1 if self.is_decode else 0)


def auto_sizes(planned: ShapeSizes, *, prefill_tile: int) -> ShapeSizes:
    """Return the sizes of a plan and halves of its limits, down to few rows.

    >>> auto_sizes(ShapeSizes((128, 512), (4, 6)), prefill_tile=1)
    ShapeSizes(num_tokens=(16, 32, 64, 128, 256, 512), num_seqs=(1, 3, 4, 6))
    """
    least = round_up(MIN_PREFILL_TOKENS, prefill_tile)
    tokens = (round_up(size, prefill_tile) for size in _halves(planned.num_tokens[-1], least))
    return merged(planned, ShapeSizes(tuple(tokens), tuple(_halves(planned.num_seqs[-1], 1))))


def merged(one: ShapeSizes, other: ShapeSizes) -> ShapeSizes:
    """Return the sizes of both."""
    return ShapeSizes(
        tuple(sorted({*one.num_tokens, *other.num_tokens})),
        tuple(sorted({*one.num_seqs, *other.num_seqs})),
    )


def read_sizes(name: str, text: str, limit: int) -> tuple[int, ...]:
    """Read sizes separated by commas.

    Raises:
        ConfigError: an entry is no whole number from 1 to the limit of the configuration.
    """
    sizes = []
    for word in text.split(","):
        if not word.strip().isdecimal() or not 1 <= int(word) <= limit:
            raise ConfigError(
                f"{name}: {word.strip()!r} is not a whole number from 1 to {limit}, the limit of "
                "the configuration"
            )
        sizes.append(int(word))
    return tuple(sorted(set(sizes)))


def shapes_of(sizes: ShapeSizes, *, max_model_len: int, fits: Fits) -> tuple[Shape, ...]:
    """Return the steps to measure: each size, with contexts from short to as long as there is.

    Every second prefill size, the smallest first, is measured with prefixes too. Steps that do
    not fit the cache are left out.
    """
    prefill = [
        Shape(False, size, prefix)
        for index, size in enumerate(sizes.num_tokens)
        for prefix in _prefixes(max_model_len - size, is_bare=index % 2 == 1)
    ]
    contexts = sorted({max(1, max_model_len // share) for share in CONTEXT_SHARES})
    decode = [Shape(True, size, context - 1) for size in sizes.num_seqs for context in contexts]
    return tuple(
        shape
        for shape in (*prefill, *decode)
        if fits(shape.num_seqs, shape.num_computed, shape.num_new)
    )


def _prefixes(longest: int, *, is_bare: bool) -> Sequence[int]:
    if is_bare or longest < 1:
        return (0,)
    return sorted({0, longest, longest // CONTEXT_SHARES[1]})


def _halves(limit: int, least: int) -> Iterable[int]:
    """Yield the limit and its halves, not below ``least`` unless the limit is."""
    yield limit
    for _ in range(MAX_NUM_HALVINGS):
        limit //= 2
        if limit < least:
            return
        yield limit
