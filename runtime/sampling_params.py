"""How one request is sampled and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from .errors import RequestError

MAX_SEED = 2**64 - 1
MAX_FLOAT32 = 3.4028234663852886e38
GREEDY_TEMPERATURE = 1e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Sampling settings of one request.

    Attributes:
        temperature: 0 is greedy, and so is anything below 1e-5, where a softmax could only
            tell exact ties apart; otherwise logits are divided by it.
        top_k: sample among this many largest logits; 0, -1 and None mean all.
        top_p: sample among the smallest set of tokens whose probability reaches it, in (0, 1].
        max_tokens: end after this many new tokens; None means up to ``max_model_len``, which
            ends a request in any case (both with finish reason "length").
        seed: the same seed gives the same tokens in any batch; None draws one.
        stop_token_ids: tokens that end the request, besides the model's own end tokens.
        ignore_eos: do not end at the model's end tokens.

    Raises:
        RequestError: a value is of the wrong type or out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    max_tokens: int | None = None
    seed: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        """Refuse what can never be sampled."""
        _check_real("temperature", self.temperature, "a number from 0 to 3.4e38", lambda _: True)
        _check_real("top_p", self.top_p, "a number in (0, 1]", lambda v: 0 < v <= 1)
        if self.top_k is not None:
            _check_int("top_k", self.top_k, "an integer >= -1 (0 and -1: all tokens)", low=-1)
        if self.max_tokens is not None:
            _check_int("max_tokens", self.max_tokens, "an integer >= 1, or None", low=1)
        if self.seed is not None:
            _check_int("seed", self.seed, "an integer in 0 .. 2**64 - 1", low=0, high=MAX_SEED)
        if not isinstance(self.ignore_eos, bool):
            _refuse("ignore_eos", self.ignore_eos, "true or false")
        if not isinstance(self.stop_token_ids, Sequence) or isinstance(self.stop_token_ids, str):
            _refuse("stop_token_ids", self.stop_token_ids, "a list of token ids")
        object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        for token_id in self.stop_token_ids:
            _check_int("stop_token_ids", token_id, "token ids >= 0", low=0)

    @property
    def is_greedy(self) -> bool:
        """Whether the largest logit is always taken."""
        return self.temperature < GREEDY_TEMPERATURE or self.top_k == 1


def _check_real(name: str, value: object, fits: str, is_valid: Callable[[float], bool]) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compared before it is converted: an int may be beyond every float.
    if not (
        is_number and 0 <= (number := cast("float", value)) <= MAX_FLOAT32 and is_valid(number)
    ):
        _refuse(name, value, fits)


def _check_int(name: str, value: object, fits: str, *, low: int, high: int | None = None) -> None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if not (is_int and low <= (number := cast("int", value)) and (high is None or number <= high)):
        _refuse(name, value, fits)


def _refuse(name: str, value: object, fits: str) -> None:
    raise RequestError(f"{name} is {value!r} ({type(value).__name__}); it must be {fits}")
