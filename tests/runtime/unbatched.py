"""What a request must get, one request and one token at a time: no cache, no batch, no blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import brute_sampler
import numpy as np
import torch
from sampling_oracle import changed_logits
from torch import Tensor

from noria.runtime.random_draws import sample_seed, uniforms
from noria.runtime.request import FinishReason
from noria.runtime.sampling_params import SamplingParams

Logits = Callable[[Sequence[int]], Tensor]
"""Token ids to the logits of every position."""


class PairStop:
    """A text that ends where two tokens in a row add up to a multiple of a number."""

    def __init__(self, modulus: int) -> None:
        self.modulus = modulus
        self.token_ids: list[int] = []
        self.num_taken = 0

    @property
    def text(self) -> str:
        return " ".join(map(str, self.token_ids))

    def push(self, token_id: int) -> bool:
        self.token_ids.append(token_id)
        return len(self.token_ids) > 1 and sum(self.token_ids[-2:]) % self.modulus == 0

    def take(self) -> str:
        return ""

    def finish(self) -> bool:
        return False


class Residues:
    """A grammar: the token at place i has id % 3 == i % 3, and there are so many of them."""

    def __init__(self, vocab_size: int, length: int) -> None:
        self.vocab_size = vocab_size
        self.length = length
        self.num_tokens = 0

    def allowed(self) -> list[int]:
        return list(range(self.num_tokens % 3, self.vocab_size, 3))

    def bitmask(self) -> np.ndarray:
        words = np.zeros(-(-self.vocab_size // 32), dtype=np.uint32)
        for token_id in self.allowed():
            words[token_id // 32] |= np.uint32(1 << token_id % 32)
        return words.view(np.int32)

    def accept(self, token_id: int) -> None:
        assert token_id in self.allowed()
        self.num_tokens += 1

    @property
    def is_complete(self) -> bool:
        return self.num_tokens >= self.length


@dataclass(frozen=True)
class Ask:
    """A request as a test submits it, and what watches its tokens."""

    prompt: tuple[int, ...]
    params: SamplingParams
    modulus: int | None = None
    grammar_length: int | None = None


@dataclass
class Answer:
    """What one sample must get."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[dict[int, float]] = field(default_factory=list)
    finish_reason: FinishReason | None = None


class HasLimits(Protocol):
    """An engine's limits, as far as they end a request."""

    vocab_size: int
    max_model_len: int


def answer(
    ask: Ask, sample: int, logits_of: Logits, limits: HasLimits, end_token_ids: frozenset[int]
) -> Answer:
    """Return what sample ``sample`` of a request must get."""
    params, result = ask.params, Answer()
    ends = set(params.stop_token_ids) | (set() if params.ignore_eos else end_token_ids)
    text = PairStop(ask.modulus) if ask.modulus else None
    grammar = Residues(limits.vocab_size, ask.grammar_length) if ask.grammar_length else None
    most = min(len(ask.prompt) + (params.max_tokens or limits.max_model_len), limits.max_model_len)
    while result.finish_reason is None:
        context = [*ask.prompt, *result.token_ids]
        raw = logits_of(context)[-1].tolist()
        result.logprobs.append(brute_sampler.logprobs(raw))
        token_id = _choose(raw, ask, sample, result.token_ids, ends, grammar)
        result.token_ids.append(token_id)
        if token_id in ends:
            result.finish_reason = FinishReason.STOP
            break
        if grammar is not None:
            grammar.accept(token_id)
        is_text_end = text is not None and text.push(token_id)
        if is_text_end or (grammar is not None and grammar.is_complete):
            result.finish_reason = FinishReason.STOP
        elif len(context) + 1 >= most:
            result.finish_reason = FinishReason.LENGTH
    return result


def _choose(
    raw: list[float],
    ask: Ask,
    sample: int,
    output: Sequence[int],
    ends: set[int],
    grammar: Residues | None,
) -> int:
    params = ask.params
    if grammar is not None:
        allowed = set(grammar.allowed())
        raw = [x if i in allowed else -math.inf for i, x in enumerate(raw)]
    logits = changed_logits(
        torch.tensor(raw, dtype=torch.float64), params, ask.prompt, output, ends
    )
    if params.is_greedy:
        return max(range(len(logits)), key=lambda token_id: (logits[token_id], -token_id))
    kept = brute_sampler.kept_tokens(
        logits,
        temperature=params.temperature,
        top_k=max(params.top_k or 0, 0),
        top_p=params.top_p,
        min_p=params.min_p,
    )
    seed = sample_seed(params.seed, sample)
    return brute_sampler.draw(kept, float(uniforms([seed], [len(ask.prompt) + len(output)])[0]))
