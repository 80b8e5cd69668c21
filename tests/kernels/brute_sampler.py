"""A second oracle for the sampler: one row, one token at a time, in Python floats."""

from __future__ import annotations

import math
from collections.abc import Sequence


def kept_tokens(
    logits: Sequence[float], *, temperature: float, top_k: int, top_p: float
) -> dict[int, float]:
    """Return the probability of each token that survives the filters, in id order."""
    ranked = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    candidates = ranked[:top_k] if top_k > 0 else ranked
    largest = logits[ranked[0]]
    weights = {token: math.exp((logits[token] - largest) / temperature) for token in candidates}
    total = math.fsum(weights.values())
    kept: dict[int, float] = {}
    for token in candidates:
        if kept and top_p < 1 and math.fsum(kept.values()) >= top_p * total:
            break
        kept[token] = weights[token]
    kept_total = math.fsum(kept.values())
    return {token: kept[token] / kept_total for token in sorted(kept)}


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
