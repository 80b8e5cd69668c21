"""What a request's sampling remembers, against a look at its whole output every time."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.runtime.errors import RequestError
from noria.runtime.sampler_features import check_features
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import (
    MAX_BIAS_ENTRIES,
    SamplingState,
    TokenHistory,
    check_bias,
)

VOCAB = 2000
TOKENS = st.lists(st.integers(0, 30), max_size=60)


def state(params: SamplingParams, prompt: tuple[int, ...] = (1, 2), **more: Any) -> SamplingState:
    given = {"seed": 5, "end_token_ids": (), "vocab_size": VOCAB} | more
    return SamplingState(params, prompt_token_ids=prompt, **given)


def bias_of(one: SamplingState) -> dict[int, float]:
    bias = one.row(0).bias
    return {} if bias is None else dict(zip(*(part.tolist() for part in bias), strict=True))


@given(TOKENS, TOKENS)
def test_a_history_counts_each_token_once_and_its_outputs(prompt, output):
    history = TokenHistory(prompt)
    for token_id in output:
        history.append(token_id)

    token_ids, counts = (part.tolist() for part in history.counts())

    assert token_ids == list(dict.fromkeys([*prompt, *output]))
    assert counts == [Counter(output)[token_id] for token_id in token_ids]


def test_a_long_history_grows_by_doubling():
    history = TokenHistory(())
    bases = set()
    for token_id in range(10_000):
        history.append(token_id)
        bases.add(id(history.counts().token_ids.base))

    assert len(bases) <= 11
    assert history.counts().token_ids.tolist() == list(range(10_000))


@pytest.mark.parametrize(
    ("params", "listed"),
    [
        ({}, None),
        ({"repetition_penalty": 1.1}, [1, 2, 8]),
        ({"presence_penalty": 1}, [8]),
        ({"frequency_penalty": 1}, [8]),
    ],
    ids=["none", "repetition", "presence", "frequency"],
)
def test_only_a_repetition_penalty_looks_at_the_prompt(params, listed):
    one = state(SamplingParams(**params))
    one.append(8)

    history = one.row(3).history

    assert (None if history is None else history.token_ids.tolist()) == listed


@settings(max_examples=60)
@given(
    words=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), max_size=4),
    output=st.lists(st.integers(0, 3), max_size=12),
    min_tokens=st.integers(0, 8),
)
def test_what_is_banned_is_what_a_look_at_the_whole_output_finds(words, output, min_tokens):
    params = SamplingParams(bad_word_ids=words, min_tokens=min_tokens, logit_bias={3: 5, 9: -1})
    one = state(params, end_token_ids=(9, 11))
    for step in range(len(output) + 1):
        before = output[:step]
        expected = {3: 5.0, 9: -1.0}
        for word in words:
            if before[step - len(word) + 1 :] == word[:-1] and step >= len(word) - 1:
                expected[word[-1]] = -math.inf
        if step < min_tokens:
            expected |= {9: -math.inf, 11: -math.inf}

        assert bias_of(one) == expected
        if step < len(output):
            one.append(output[step])


def test_bad_words_look_at_the_output_only():
    one = state(SamplingParams(bad_word_ids=[[2, 7]]), prompt=(1, 2))

    assert bias_of(one) == {}
    one.append(2)
    assert bias_of(one) == {7: -math.inf}


def test_j07_min_tokens_holds_back_every_end_token_it_is_given():
    one = state(SamplingParams(min_tokens=2, stop_token_ids=(2,)), end_token_ids={2, 5, 7})

    banned = []
    for token_id in (3, 3, 3):
        banned.append(set(bias_of(one)))
        one.append(token_id)

    assert banned == [{2, 5, 7}, {2, 5, 7}, set()]


def test_min_tokens_with_nothing_to_hold_back_needs_no_bias():
    assert bias_of(state(SamplingParams(min_tokens=5))) == {}


class Constraint:
    """Allows the tokens that are as odd as the last one."""

    is_complete = False

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def bitmask(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        return np.full(63, len(self.accepted), dtype=np.int32)

    def accept(self, token_id: int) -> None:
        self.accepted.append(token_id)


def test_a_constraint_follows_the_tokens():
    constraint = Constraint()
    one = state(SamplingParams(), constraint=constraint)

    first = one.row(2).bitmask
    one.append(40)

    assert first is not None
    assert (first[0], one.row(3).bitmask[0], constraint.accepted) == (0, 1, [40])


def test_a_row_says_where_it_draws():
    row = state(SamplingParams(temperature=0.5)).row(17)

    assert (row.params.temperature, row.seed, row.position) == (0.5, 5, 17)
    assert (row.history, row.bias, row.bitmask) == (None, None, None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logit_bias": {VOCAB: 1}}, r"logit_bias holds 2000; token ids of this model are 0"),
        ({"bad_word_ids": [[3, VOCAB]]}, r"bad_word_ids holds 2000; token ids"),
        ({"stop_token_ids": [VOCAB]}, r"stop_token_ids holds 2000; token ids"),
        (
            {"logit_bias": dict.fromkeys(range(MAX_BIAS_ENTRIES + 1), 1)},
            "are 1025 tokens; a request may bias at most 1024",
        ),
        (
            {
                "logit_bias": dict.fromkeys(range(MAX_BIAS_ENTRIES - 1), 1),
                "bad_word_ids": [[0, 1]],
                "min_tokens": 1,
            },
            "are 1025 tokens; a request may bias at most 1024",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_tokens_that_do_not_fit_are_refused_at_once(settings, message):
    with pytest.raises(RequestError, match=message):
        check_bias(SamplingParams(**settings), (1500, 1501), VOCAB)


def test_as_many_biased_tokens_as_the_input_holds_are_taken():
    params = SamplingParams(logit_bias=dict.fromkeys(range(MAX_BIAS_ENTRIES), 1))
    check_bias(params, (), VOCAB)

    assert len(bias_of(state(params))) == MAX_BIAS_ENTRIES


@pytest.mark.parametrize(
    ("settings", "feature"),
    [
        ({"temperature": 1}, "temperature 1 needs the sampler feature top_k_top_p"),
        ({"repetition_penalty": 2}, "repetition_penalty 2 needs the sampler feature penalties"),
        ({"presence_penalty": 2}, "presence_penalty 2 needs the sampler feature penalties"),
        ({"frequency_penalty": -1}, "frequency_penalty -1 needs the sampler feature penalties"),
        ({"logit_bias": {5: 1}}, r"logit_bias \{5: 1.0\} needs the sampler feature logit_bias"),
        ({"bad_words": ["a"]}, r"bad_words \('a',\) needs the sampler feature logit_bias"),
        ({"bad_word_ids": [[5]]}, r"bad_word_ids \(\(5,\),\) needs the sampler feature logit_bias"),
        ({"min_tokens": 1}, "min_tokens 1 needs the sampler feature logit_bias"),
        (
            {"structured_output": {"regex": "a"}},
            "structured_output .* needs the sampler feature structured_output",
        ),
        ({"logprobs": 0}, "logprobs 0 needs the sampler feature logprobs"),
        ({"prompt_logprobs": 0}, "prompt_logprobs 0 needs the sampler feature prompt_logprobs"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_request_that_needs_what_is_not_listed_is_refused(settings, feature):
    params = SamplingParams(**{"temperature": 0, **settings})

    with pytest.raises(RequestError, match=rf"^{feature}, which sampler_features does not list$"):
        check_features(params, ("greedy",), 20)
    check_features(params, (feature.split()[-1],), 20)


@pytest.mark.parametrize("name", ["logprobs", "prompt_logprobs"])
def test_i09_more_logprobs_than_the_graphs_hold_are_refused(name: str):
    features = ("top_k_top_p", name)

    check_features(SamplingParams(**{name: 20}), features, 20)
    with pytest.raises(RequestError, match=f"^{name} is 21; max_logprobs allows 20$"):
        check_features(SamplingParams(**{name: 21}), features, 20)
