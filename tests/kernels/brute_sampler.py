"""A second oracle for the sampler: one row, one token at a time, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept_tokens(
    logits: Sequence[float],
    *,
    temperature: float,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> dict[int, float]:
    """Return the probability of each token that survives the filters, in id order."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    candidates = ranked[:top_k] if top_k > 0 else ranked
    largest = logits[ranked[0]]
    weights = {token: math.exp((logits[token] - largest) / temperature) for token in candidates}
    candidates = [token for token in candidates if weights[token] >= min_p]
    weights = {token: weights[token] for token in candidates}
    total = math.fsum(weights.values())
    kept: dict[int, float] = {}
    for token in candidates:
        if kept and top_p < 1 and math.fsum(kept.values()) >= top_p * total:
            break
        kept[token] = weights[token]
    kept_total = math.fsum(kept.values())
    return {token: kept[token] / kept_total for token in sorted(kept)}


def penalized(
    logits: Sequence[float],
    *,
    prompt: Sequence[int],
    output: Sequence[int],
    repetition: float = 1.0,
    presence: float = 0.0,
    frequency: float = 0.0,
) -> list[float]:
    """Return the logits less what a prompt and an output cost their tokens."""
    changed = list(logits)
    for token in {*prompt, *output}:
        changed[token] *= 1 / repetition if logits[token] > 0 else repetition
        changed[token] -= frequency * list(output).count(token) + presence * (token in output)
    return changed


def logprobs(logits: Sequence[float]) -> dict[int, float]:
    """Return the logarithm of each token's probability, the most probable token first."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    largest = logits[ranked[0]]
    log_sum = math.log(math.fsum(math.exp(logit - largest) for logit in logits))
    return {token: logits[token] - largest - log_sum for token in ranked}


def draw(kept: dict[int, float], uniform: float) -> int:
    """Walk the kept tokens in id order until their mass exceeds ``uniform``."""
    mass: list[float] = []
    for token, probability in kept.items():
        mass.append(probability)
        if math.fsum(mass) > uniform:
            return token
    raise AssertionError("uniform is not below 1")


def midpoints(kept: dict[int, float]) -> dict[int, float]:
    """Return for each kept token a uniform that lies well inside its interval."""
    ends = [0.0]
    for probability in kept.values():
        ends.append(ends[-1] + probability)
    return {token: (ends[i] + ends[i + 1]) / 2 for i, token in enumerate(kept)}
