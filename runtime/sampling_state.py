"""What a request's sampling remembers from token to token. Knows numbers only, no tensors.

It lives as long as the request, whatever becomes of its blocks.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .constraint import TokenConstraint, num_words
from .errors import RequestError, fault_text, is_fault
from .sampling_params import SamplingParams
from .value_text import value_text

Int32Array = npt.NDArray[np.int32]
Float32Array = npt.NDArray[np.float32]

MAX_BIAS_ENTRIES = 1024
"""Tokens whose logits one request may bias or ban in a step: the width of a graph's input."""


class TokenCounts(NamedTuple):
    """Distinct tokens, and how often each is in the output: two arrays of one length."""

    token_ids: Int32Array
    output_counts: Int32Array


class TokenBias(NamedTuple):
    """Distinct tokens, and what to add to the logit of each: two arrays of one length."""

    token_ids: Int32Array
    bias: Float32Array


@dataclass(frozen=True, slots=True)
class SamplerRow:
    """What one request asks of the sampler in one step.

    Attributes:
        seed: with ``position``, that of the token to draw, all that randomness depends on.
        history: what is penalised; the arrays change with the next token.
        bias: what is added to logits.
        bitmask: the tokens that are allowed, bit ``i % 32`` of word ``i // 32`` for token i.
    """

    params: SamplingParams
    seed: int
    position: int
    history: TokenCounts | None = None
    bias: TokenBias | None = None
    bitmask: Int32Array | None = None


class TokenHistory:
    """Distinct tokens of a request, in the order in which they came first."""

    def __init__(self, prompt_token_ids: Iterable[int]) -> None:
        """Start with tokens that count nothing."""
        distinct = dict.fromkeys(prompt_token_ids)
        self._place_of = {token_id: place for place, token_id in enumerate(distinct)}
        capacity = max(16, 2 * len(distinct))
        self._token_ids = np.zeros(capacity, dtype=np.int32)
        self._counts = np.zeros(capacity, dtype=np.int32)
        self._token_ids[: len(distinct)] = list(distinct)

    def append(self, token_id: int) -> None:
        """Count a generated token."""
        place = self._place_of.setdefault(token_id, len(self._place_of))
        if place == len(self._token_ids):
            self._token_ids = np.concatenate([self._token_ids, np.zeros_like(self._token_ids)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._token_ids[place] = token_id
        self._counts[place] += 1

    def counts(self) -> TokenCounts:
        """Return views, which the next token changes."""
        size = len(self._place_of)
        return TokenCounts(self._token_ids[:size], self._counts[:size])


class BiasList:
    """What is added to the logits of a request's next token."""

    def __init__(self, params: SamplingParams, end_token_ids: Collection[int]) -> None:
        """Take the bias that never changes, and what bans more tokens at times."""
        single = {ids[0] for ids in params.bad_word_ids if len(ids) == 1}
        self._fixed = dict(params.logit_bias or {}) | dict.fromkeys(single, -math.inf)
        self._endings = [ids for ids in params.bad_word_ids if len(ids) > 1]
        self._end_token_ids = dict.fromkeys(end_token_ids, -math.inf)
        self._min_tokens = params.min_tokens if end_token_ids else 0
        self._always = _as_bias(self._fixed)

    def bias(self, output_token_ids: Sequence[int]) -> TokenBias | None:
        """Return the bias behind this output; None where there is none."""
        banned = {ids[-1] for ids in self._endings if _ends_with(output_token_ids, ids[:-1])}
        is_short = len(output_token_ids) < self._min_tokens
        if not banned and not is_short:
            return self._always
        ends = self._end_token_ids if is_short else {}
        return _as_bias(self._fixed | dict.fromkeys(banned, -math.inf) | ends)


class SamplingState:
    """Sampling of one request, from its first token to its last."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        seed: int,
        prompt_token_ids: Sequence[int],
        end_token_ids: Collection[int],
        vocab_size: int,
        constraint: TokenConstraint | None = None,
    ) -> None:
        """Start before the first generated token; keep only what the settings need.

        They must have passed ``check_bias``.
        """
        self._params = params
        self._seed = seed
        is_repetition = params.repetition_penalty != 1
        listed = prompt_token_ids if is_repetition else ()
        self._history = TokenHistory(listed) if params.has_penalties else None
        self._bias = BiasList(params, end_token_ids)
        self._constraint = constraint
        self._vocab_size = vocab_size
        self._output_token_ids: list[int] = []
        self.fault: str | None = None
        """Why no token is allowed, where the constraint cannot tell which are."""

    def row(self, position: int) -> SamplerRow:
        """Return what to ask for the token at this position; valid until the next ``append``."""
        return SamplerRow(
            self._params,
            self._seed,
            position,
            history=None if self._history is None else self._history.counts(),
            bias=self._bias.bias(self._output_token_ids),
            bitmask=None if self._constraint is None else self._bitmask(self._constraint),
        )

    def append(self, token_id: int) -> None:
        """Take a generated token that does not end the request."""
        self._output_token_ids.append(token_id)
        if self._history is not None:
            self._history.append(token_id)
        if self._constraint is not None:
            self._constraint.accept(token_id)

    def _bitmask(self, constraint: TokenConstraint) -> Int32Array:
        """Return what is allowed: nothing where the constraint fails, which ends its request."""
        try:
            return constraint.bitmask()
        except BaseException as error:
            if not is_fault(error):
                raise
            self.fault = f"the grammar of the output failed: {fault_text(error)}"
            return np.zeros(num_words(self._vocab_size), dtype=np.int32)


def check_bias(params: SamplingParams, end_token_ids: Collection[int], vocab_size: int) -> None:
    """Refuse tokens that the model lacks, and more biased ones than a graph's input holds.

    Raises:
        RequestError: names the setting and the number.
    """
    named = {
        "logit_bias": list(params.logit_bias or {}),
        "bad_word_ids": [token_id for ids in params.bad_word_ids for token_id in ids],
        "stop_token_ids": params.stop_token_ids,
    }
    for setting, token_ids in named.items():
        beyond = next((token_id for token_id in token_ids if token_id >= vocab_size), None)
        if beyond is not None:
            raise RequestError(
                f"{setting} holds {value_text(beyond)}; token ids of this model are "
                f"0 .. {vocab_size - 1}"
            )
    biased = {*named["logit_bias"], *(ids[-1] for ids in params.bad_word_ids)}
    biased |= set(end_token_ids) if params.min_tokens else set()
    if len(biased) > MAX_BIAS_ENTRIES:
        raise RequestError(
            f"logit_bias, bad_words and the end tokens that min_tokens holds back are "
            f"{len(biased)} tokens; a request may bias at most {MAX_BIAS_ENTRIES}"
        )


def _ends_with(token_ids: Sequence[int], ending: Sequence[int]) -> bool:
    return tuple(token_ids[-len(ending) :]) == tuple(ending)


def _as_bias(bias: Mapping[int, float]) -> TokenBias | None:
    if not bias:
        return None
    return TokenBias(np.array(list(bias), np.int32), np.array(list(bias.values()), np.float32))
