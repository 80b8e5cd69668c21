"""What a sampler can do, what a request needs of it, and which samplers are compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .errors import RequestError
from .sampling_params import SamplingParams
from .value_text import value_text

GREEDY = "greedy"
TOP_K_TOP_P = "top_k_top_p"
PENALTIES = "penalties"
LOGIT_BIAS = "logit_bias"
STRUCTURED_OUTPUT = "structured_output"
LOGPROBS = "logprobs"
PROMPT_LOGPROBS = "prompt_logprobs"


@dataclass(frozen=True, slots=True)
class FeatureNeed:
    """A setting that needs a feature where ``applies`` says so, and its value that does not."""

    feature: str
    setting: str
    off: str
    applies: Callable[[SamplingParams], bool]


FEATURE_NEEDS = (
    FeatureNeed(TOP_K_TOP_P, "temperature", "0", lambda p: not p.is_greedy),
    FeatureNeed(PENALTIES, "repetition_penalty", "1", lambda p: p.repetition_penalty != 1),
    FeatureNeed(PENALTIES, "presence_penalty", "0", lambda p: p.presence_penalty != 0),
    FeatureNeed(PENALTIES, "frequency_penalty", "0", lambda p: p.frequency_penalty != 0),
    FeatureNeed(LOGIT_BIAS, "logit_bias", "null", lambda p: bool(p.logit_bias)),
    FeatureNeed(LOGIT_BIAS, "bad_words", "[]", lambda p: bool(p.bad_words)),
    FeatureNeed(LOGIT_BIAS, "bad_word_ids", "[]", lambda p: bool(p.bad_word_ids)),
    FeatureNeed(LOGIT_BIAS, "min_tokens", "0", lambda p: p.min_tokens > 0),
    FeatureNeed(
        STRUCTURED_OUTPUT, "structured_output", "null", lambda p: p.structured_output is not None
    ),
    FeatureNeed(LOGPROBS, "logprobs", "null", lambda p: p.logprobs is not None),
    FeatureNeed(
        PROMPT_LOGPROBS, "prompt_logprobs", "null", lambda p: p.prompt_logprobs is not None
    ),
)


def check_features(params: SamplingParams, features: Collection[str], max_logprobs: int) -> None:
    """Refuse a request that the compiled samplers cannot serve.

    Raises:
        RequestError: names the setting, and what the configuration lacks.
    """
    for need in FEATURE_NEEDS:
        if need.feature not in features and need.applies(params):
            value = value_text(getattr(params, need.setting))
            raise RequestError(
                f"{need.setting} {value} needs the sampler feature {need.feature}, which "
                f"sampler_features does not list"
            )
    for name in ("logprobs", "prompt_logprobs"):
        count = getattr(params, name) or 0
        if count > max_logprobs:
            raise RequestError(f"{name} is {value_text(count)}; max_logprobs allows {max_logprobs}")


def sampler_variants(features: Iterable[str]) -> tuple[frozenset[str], ...]:
    """Return the features of each sampler to compile, the least one first.

    One takes the largest logit and one draws; if more is listed, one more does all of it. A
    step takes the first that covers what its rows need.
    """
    listed = frozenset(features) - {PROMPT_LOGPROBS}
    variants = [frozenset({GREEDY}), frozenset({GREEDY, TOP_K_TOP_P}) & listed, listed]
    return tuple(dict.fromkeys(variants))
