"""What a sampler gives for one row: a token, and what was probable."""

from __future__ import annotations

from dataclasses import dataclass

MIN_LOGPROB = -9999.0
"""Stands for anything below it, -inf included: JSON has no infinite numbers."""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Logarithms of probabilities at one position, of the model's own logits.

    Attributes:
        logprob: of the token that is there, at least MIN_LOGPROB.
        rank: of that token, 1 for the most probable one; equal ones rank by id.
        top: (token id, logprob) of the most probable tokens, as many as were asked for; all of
            the vocabulary where it has fewer.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class SampledToken:
    """A drawn token, and its logprobs where the request asks for them.

    ``token_id`` is -1 where there is none: the logits held something that is not a number, or
    all that the request allows was impossible.
    """

    token_id: int
    logprobs: TokenLogprobs | None = None
