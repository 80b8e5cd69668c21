"""Rotary embeddings as values: base, how much of a head rotates, and how angles are scaled.

Frequencies are fixed for a run. Scalings whose frequencies depend on the length of the sequence
(dynamic, longrope) take those of a sequence of ``max_len`` tokens, so that a token's keys are the
same in every batch, chunk and bucket. Imports no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ..errors import ModelError

DEFAULT_ROPE_THETA = 10000.0


class Scaling(Protocol):
    """How the frequencies of a rope are changed to reach more positions."""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Return the angle per position of each pair, from those without scaling."""

    def reach(self, max_position_embeddings: int) -> int:
        """Return how many positions the scaled model serves."""


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of a layer: only the first rotary dims of each head rotate."""

    theta: float = DEFAULT_ROPE_THETA
    scaling: Scaling | None = None
    partial_rotary_factor: float = 1.0
    """Share of the head dim that rotates."""

    @property
    def attention_factor(self) -> float:
        """What cosines and sines are multiplied by."""
        return 1.0 if self.scaling is None else self.scaling.attention_factor

    def rotary_dim(self, head_dim: int) -> int:
        """Return how many dims of a head rotate."""
        return int(head_dim * self.partial_rotary_factor)

    def frequencies(self, head_dim: int, max_len: int) -> tuple[float, ...]:
        """Return the angle per position of each rotated pair: float64, rotary dims / 2 values."""
        dim = self.rotary_dim(head_dim)
        plain = [self.theta ** (-2 * pair / dim) for pair in range(dim // 2)]
        if self.scaling is None:
            return tuple(plain)
        return tuple(self.scaling.frequencies(plain, self.theta, max_len))

    def check(self, head_dim: int, max_position_embeddings: int) -> None:
        """Refuse numbers that give no frequencies at some length that the rope reaches.

        Raises:
            ModelError: a list has another length, or a frequency is not a finite number.
        """
        try:
            reach = self.reach(max_position_embeddings)
            lengths = (1, max_position_embeddings, reach)
            found = [f for length in lengths for f in self.frequencies(head_dim, length)]
        except ModelError:
            raise
        except (ArithmeticError, ValueError):
            found = [math.nan]
        if not all(map(math.isfinite, [*found, self.attention_factor])):
            raise ModelError(
                f"rope: rope_theta {self.theta} and its scaling give angles that are not finite"
            )

    def reach(self, max_position_embeddings: int) -> int:
        """Return how many positions the model serves with this rope."""
        if self.scaling is None:
            return max_position_embeddings
        return self.scaling.reach(max_position_embeddings)


PLAIN_ROPE = Rope()


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by a factor."""

    factor: float
    attention_factor: float = 1.0

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Divide every frequency."""
        return [frequency / self.factor for frequency in plain]

    def reach(self, max_position_embeddings: int) -> int:
        """Return ``factor`` times the positions of training."""
        return int(self.factor * max_position_embeddings)


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Long wavelengths stretched, as Llama 3.1's published rope scaling does.

    Wavelengths above ``original_max_position_embeddings / low_freq_factor`` are stretched by
    ``factor``, those below ``.../high_freq_factor`` kept, between them blended.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int
    attention_factor: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a band of wavelengths that is empty or upside down."""
        if self.low_freq_factor >= self.high_freq_factor:
            raise ModelError(
                f"rope: low_freq_factor {self.low_freq_factor} must be below "
                f"high_freq_factor {self.high_freq_factor}"
            )

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Stretch each frequency by its wavelength."""
        return [self._stretch(frequency) for frequency in plain]

    def reach(self, max_position_embeddings: int) -> int:
        """Return the positions of the configuration, which count the scaling."""
        return max_position_embeddings

    def _stretch(self, frequency: float) -> float:
        wavelength = 2 * math.pi / frequency
        original = self.original_max_position_embeddings
        if wavelength < original / self.high_freq_factor:
            return frequency
        if wavelength > original / self.low_freq_factor:
            return frequency / self.factor
        band = self.high_freq_factor - self.low_freq_factor
        keep = (original / wavelength - self.low_freq_factor) / band
        return (1 - keep) * frequency / self.factor + keep * frequency


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): fast pairs kept, slow ones divided by the factor, a ramp between.

    A pair is fast if it turns more than ``beta_fast`` times in the original context, slow if
    fewer than ``beta_slow`` times; ``truncate`` rounds both ends of the ramp to whole pairs.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Blend each frequency with its scaled one by its place in the ramp."""
        low, high = (self._pair(len(plain), theta, turns) for turns in self._turns)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, 2 * len(plain) - 1)
        if low == high:
            high += 0.001  # as the paper's code: a ramp of no width divides by zero
        return [
            _blend(frequency, frequency / self.factor, (pair - low) / (high - low))
            for pair, frequency in enumerate(plain)
        ]

    @property
    def _turns(self) -> tuple[float, float]:
        return self.beta_fast, self.beta_slow

    def reach(self, max_position_embeddings: int) -> int:
        """Return ``factor`` times the original positions."""
        return int(self.factor * self.original_max_position_embeddings)

    def _pair(self, num_pairs: int, theta: float, turns: float) -> float:
        """Return the (fractional) pair that turns so many times in the original context."""
        wavelength = self.original_max_position_embeddings / (turns * 2 * math.pi)
        return num_pairs * math.log(wavelength) / math.log(theta)


@dataclass(frozen=True, slots=True)
class DynamicScaling:
    """NTK scaling: a larger base, so that the slowest pair spans ``max_len`` tokens.

    Up to ``original_max_position_embeddings`` tokens nothing changes.
    """

    factor: float
    original_max_position_embeddings: int
    attention_factor: float = 1.0

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Return the frequencies of a sequence of ``max_len`` tokens."""
        original, dim = self.original_max_position_embeddings, 2 * len(plain)
        stretch = self.factor * max(max_len, original) / original - (self.factor - 1)
        base = theta * stretch ** (dim / (dim - 2)) if dim > 2 else theta
        return [base ** (-2 * pair / dim) for pair in range(len(plain))]

    def reach(self, max_position_embeddings: int) -> int:
        """Return ``factor`` times the positions of training."""
        return int(self.factor * self.original_max_position_embeddings)


@dataclass(frozen=True, slots=True)
class LongRopeScaling:
    """LongRoPE (arXiv 2402.13753): every frequency divided by a factor of its own.

    The long factors hold if ``max_len`` exceeds the original context, else the short ones.
    """

    short_factor: tuple[float, ...]
    long_factor: tuple[float, ...]
    original_max_position_embeddings: int
    attention_factor: float

    def frequencies(self, plain: Sequence[float], theta: float, max_len: int) -> Sequence[float]:
        """Divide each frequency by its factor."""
        if not len(self.short_factor) == len(self.long_factor) == len(plain):
            raise ModelError(
                f"rope: short_factor and long_factor must list {len(plain)} numbers, one per "
                "rotated pair"
            )
        is_long = max_len > self.original_max_position_embeddings
        factors = self.long_factor if is_long else self.short_factor
        return [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]

    def reach(self, max_position_embeddings: int) -> int:
        """Return the positions of the configuration, which count the scaling."""
        return max_position_embeddings


def _blend(fast: float, slow: float, place: float) -> float:
    ramp = min(max(place, 0.0), 1.0)
    return slow * ramp + fast * (1 - ramp)
