"""How one request is sampled and when it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from .errors import RequestError
from .sampling_values import (
    MAX_FLOAT32,
    MIN_FLOAT32,
    MIN_FLOAT64,
    check_bool,
    check_int,
    check_real,
    read_id_lists,
    read_logit_bias,
    read_structured_output,
    read_texts,
    read_token_ids,
)
from .schema import Setting
from .value_text import value_text

MAX_SEED = 2**64 - 1
MAX_SAMPLES = 16384
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request. Names and ranges are vLLM's.

    The logits of a step go through, in this order: ``structured_output``, ``logit_bias`` with
    ``bad_words`` and ``min_tokens``, the penalties, temperature, ``min_p``, ``top_k``, ``top_p``.

    Attributes:
        n: how many samples to draw for the prompt. The first is what n = 1 gives; the seed of
            sample i is ``random_draws.sample_seed(seed, i)``.
        temperature: 0 is greedy, and so is anything below 1e-5, where a softmax could only
            tell exact ties apart; otherwise logits are divided by it.
        top_k: sample among this many largest logits; 0, -1 and None mean all.
        top_p: sample among the smallest set of tokens whose probability reaches it, in (0, 1].
        min_p: sample among tokens at least this share as probable as the most probable one.
        repetition_penalty: logits of tokens in the prompt or the output are divided by it where
            above 0, else multiplied; above 1 discourages, 1 changes nothing.
        presence_penalty: taken off the logits of tokens in the output, in [-2, 2].
        frequency_penalty: taken off them once for each time they came, in [-2, 2].
        logit_bias: token id -> what to add to its logit, in [-100, 100].
        max_tokens: end after this many new tokens; None means up to ``max_model_len``, which
            ends a request in any case (both with finish reason "length").
        min_tokens: no end token before this many new tokens, and no stop string ends the text.
        seed: the same seed gives the same tokens in any batch; None draws one.
        stop: a text, or texts, that end the output, which is cut before them.
        include_stop_str_in_output: cut behind the stop string instead.
        stop_token_ids: tokens that end the request, besides the model's own end tokens.
        ignore_eos: do not end at the model's end tokens.
        bad_words: texts that the output never holds, as far as they are generated in the tokens
            in which the tokenizer writes them, at the start of a text or after a space.
        bad_word_ids: the same as token ids: lists of tokens that never follow each other in the
            output.
        skip_special_tokens: leave special tokens out of the text.
        logprobs: give the logarithm of each token's probability, and those of this many most
            probable tokens; of the model's own logits, before anything above changes them.
        prompt_logprobs: the same for the tokens of the prompt, but the first.
        structured_output: exactly one of ``json`` (a JSON schema, as a mapping or a text),
            ``regex`` (a text) and ``choice`` (a list of texts), which the output must match.

    Raises:
        RequestError: a value is of the wrong type or out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False)
    max_tokens: int | None = None
    min_tokens: int = 0
    seed: int | None = None
    stop: Annotated[tuple[str, ...], Setting("", (), written=str | tuple[str, ...])] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    bad_word_ids: tuple[tuple[int, ...], ...] = ()
    skip_special_tokens: bool = True
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    structured_output: Mapping[str, object] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Refuse what can never be sampled."""
        self._check_filters()
        self._check_penalties()
        self._check_end()
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), "an integer >= 0, or None", low=0)
        for name in ("ignore_eos", "include_stop_str_in_output", "skip_special_tokens"):
            check_bool(name, getattr(self, name))
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        self._set("stop", read_texts("stop", stop, "a text or a list of texts"))
        self._set("bad_words", read_texts("bad_words", self.bad_words, "a list of texts"))
        self._set("bad_word_ids", read_id_lists("bad_word_ids", self.bad_word_ids))
        self._set("stop_token_ids", read_token_ids("stop_token_ids", self.stop_token_ids))
        self._set("logit_bias", read_logit_bias(self.logit_bias))
        self._set("structured_output", read_structured_output(self.structured_output))

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is always taken."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1

    @property
    def has_penalties(self) -> bool:
        """Whether tokens that came before change the logits."""
        is_repetition = self.repetition_penalty != 1
        return is_repetition or self.presence_penalty != 0 or self.frequency_penalty != 0

    def end_token_ids(self, own: frozenset[int]) -> frozenset[int]:
        """Return the tokens that end a request with these settings; ``own`` are the model's."""
        return (frozenset() if self.ignore_eos else own).union(self.stop_token_ids)

    def _check_filters(self) -> None:
        number = "a number from 0 to 3.4e38"
        check_int("n", self.n, f"an integer in 1 .. {MAX_SAMPLES}", low=1, high=MAX_SAMPLES)
        check_real("temperature", self.temperature, number, low=0, high=MAX_FLOAT32)
        check_real("top_p", self.top_p, "a number in (0, 1]", low=MIN_FLOAT64, high=1)
        check_real("min_p", self.min_p, "a number in [0, 1]", low=0, high=1)
        if self.top_k is not None:
            check_int("top_k", self.top_k, "an integer >= -1 (0 and -1: all tokens)", low=-1)
        if self.seed is not None:
            check_int("seed", self.seed, "an integer in 0 .. 2**64 - 1", low=0, high=MAX_SEED)

    def _check_penalties(self) -> None:
        repetition, above_0 = self.repetition_penalty, "a number above 0, to 3.4e38"
        check_real("repetition_penalty", repetition, above_0, low=MIN_FLOAT32, high=MAX_FLOAT32)
        for name in ("presence_penalty", "frequency_penalty"):
            check_real(name, getattr(self, name), "a number in [-2, 2]", low=-2, high=2)

    def _check_end(self) -> None:
        check_int("min_tokens", self.min_tokens, "an integer >= 0", low=0)
        if self.max_tokens is None:
            return
        check_int("max_tokens", self.max_tokens, "an integer >= 1, or None", low=1)
        if self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens is {value_text(self.min_tokens)}; it must be at most max_tokens = "
                f"{value_text(self.max_tokens)}"
            )

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)
