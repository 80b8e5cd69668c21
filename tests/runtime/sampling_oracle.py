"""An oracle for sampling: a dense model and a loop over the vocabulary, one request at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from noria.kernels.reference import ReferenceKernels
from noria.runtime.random_draws import uniforms
from noria.runtime.sampling_params import SamplingParams


def changed_logits(
    logits_V: Tensor,
    params: SamplingParams,
    prompt: Sequence[int],
    output: Sequence[int],
    end_token_ids: AbstractSet[int],
) -> list[float]:
    """Return the logits that a token is drawn from, one token of the vocabulary at a time."""
    values: list[float] = logits_V.tolist()
    for token in range(len(values)):
        values[token] += (params.logit_bias or {}).get(token, 0.0)
        if len(output) < params.min_tokens and token in end_token_ids:
            values[token] = -math.inf
        for word in params.bad_word_ids:
            tail = list(output[len(output) - len(word) + 1 :]) if len(word) > 1 else []
            if token == word[-1] and tail == list(word[:-1]):
                values[token] = -math.inf
        if token in prompt or token in output:
            rate = params.repetition_penalty
            values[token] *= 1 / rate if values[token] > 0 else rate
        count = list(output).count(token)
        values[token] -= params.frequency_penalty * count + params.presence_penalty * (count > 0)
    return values


def expected_tokens(
    dense: Any,
    prompt: Sequence[int],
    params: SamplingParams,
    *,
    num_tokens: int,
    end_token_ids: AbstractSet[int] = frozenset(),
) -> list[int]:
    """Return what a request must get, recomputing everything every time."""
    output: list[int] = []
    while len(output) < num_tokens and not end_token_ids & set(output):
        logits = dense.logits([*prompt, *output])[-1]
        row = torch.tensor(
            [changed_logits(logits, params, prompt, output, end_token_ids)], dtype=torch.float64
        )
        if params.is_greedy:
            output.append(int(ReferenceKernels.greedy(row)))
            continue
        filters = [params.temperature, params.top_k or 0, params.top_p, params.min_p]
        values = [torch.tensor([float(value)]) for value in filters]
        values[1] = values[1].int()
        uniform = torch.from_numpy(uniforms([params.seed], [len(prompt) + len(output)]))
        output.append(int(ReferenceKernels.sample(row, *values, uniform)))
    return output
