from __future__ import annotations

from dataclasses import replace

import pytest

from noria.runtime.errors import RequestError
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.value_text import value_text

HUGE = 10**5000
"""Python refuses to write it in decimal."""


@pytest.mark.parametrize(
    ("settings", "fragments"),
    [
        ({"temperature": -1}, ["temperature", "-1"]),
        ({"temperature": float("nan")}, ["temperature", "nan"]),
        ({"temperature": float("inf")}, ["temperature", "inf"]),
        ({"temperature": "1"}, ["temperature", "'1'", "str"]),
        ({"temperature": True}, ["temperature", "True"]),
        ({"temperature": 1e300}, ["temperature", "1e+300", "3.4e38"]),
        ({"temperature": 10**400}, ["temperature", "3.4e38"]),
        ({"top_p": float("nan")}, ["top_p", "nan"]),
        ({"top_p": 0}, ["top_p", "(0, 1]"]),
        ({"top_p": 1.1}, ["top_p", "1.1"]),
        ({"top_k": -2}, ["top_k", "-2"]),
        ({"top_k": 1.0}, ["top_k", "1.0"]),
        ({"max_tokens": 0}, ["max_tokens", "0"]),
        ({"max_tokens": -1}, ["max_tokens", "-1"]),
        ({"max_tokens": "5"}, ["max_tokens", "'5'"]),
        ({"max_tokens": 5.0}, ["max_tokens", "5.0"]),
        ({"seed": -1}, ["seed", "-1"]),
        ({"seed": 2**64}, ["seed", str(2**64)]),
        ({"stop_token_ids": (-1,)}, ["stop_token_ids", "-1"]),
        ({"stop_token_ids": ("a",)}, ["stop_token_ids", "'a'"]),
        ({"stop_token_ids": 5}, ["stop_token_ids", "5"]),
        ({"ignore_eos": 1}, ["ignore_eos", "1"]),
        ({"n": 0}, ["n is 0", "1 .. 16384"]),
        ({"n": 16385}, ["n is 16385"]),
        ({"n": 10**5000}, ["n is a number of"]),
        ({"min_p": -0.1}, ["min_p", "[0, 1]"]),
        ({"min_p": 1.01}, ["min_p", "1.01"]),
        ({"min_p": float("nan")}, ["min_p", "nan"]),
        ({"repetition_penalty": 0}, ["repetition_penalty", "above 0"]),
        ({"repetition_penalty": -1.0}, ["repetition_penalty", "-1.0"]),
        ({"repetition_penalty": float("inf")}, ["repetition_penalty", "inf"]),
        ({"presence_penalty": 2.1}, ["presence_penalty", "[-2, 2]"]),
        ({"frequency_penalty": -2.1}, ["frequency_penalty", "[-2, 2]"]),
        ({"frequency_penalty": "1"}, ["frequency_penalty", "'1'", "str"]),
        ({"logit_bias": [1]}, ["logit_bias", "mapping"]),
        ({"logit_bias": {5: 100.5}}, ["logit_bias", "100.5", "-100 to 100"]),
        ({"logit_bias": {5: float("nan")}}, ["logit_bias", "nan"]),
        ({"logit_bias": {5: True}}, ["logit_bias", "True"]),
        ({"logit_bias": {-5: 1}}, ["logit_bias", "-5"]),
        ({"logit_bias": {"a": 1}}, ["logit_bias", "'a'"]),
        ({"logit_bias": {"5" * 5000: 1}}, ["logit_bias", "..."]),
        ({"logit_bias": {"5": 1, 5: 1}}, ["logit_bias", "once"]),
        ({"min_tokens": -1}, ["min_tokens", "-1"]),
        ({"min_tokens": 5, "max_tokens": 4}, ["min_tokens is 5", "max_tokens = 4"]),
        ({"stop": ""}, ["stop", "not empty"]),
        ({"stop": ["a", ""]}, ["stop", "not empty"]),
        ({"stop": 5}, ["stop", "5", "a text or a list of texts"]),
        ({"stop": [5]}, ["stop", "5"]),
        ({"include_stop_str_in_output": 1}, ["include_stop_str_in_output", "true or false"]),
        ({"skip_special_tokens": None}, ["skip_special_tokens", "true or false"]),
        ({"stop": ["a\ud800"]}, ["stop is 'a\\ud800'", "half of a surrogate pair"]),
        ({"structured_output": {"regex": "\udfff"}}, ["structured_output regex", "surrogate pair"]),
        ({"structured_output": {"choice": ["\ud800"]}}, ["structured_output choice", "surrogate"]),
        ({"min_tokens": HUGE, "max_tokens": 1}, ["min_tokens is a number of 16610 bits"]),
        ({"logit_bias": {HUGE: 1}}, ["logit_bias is a number of 16610 bits"]),
        ({"stop_token_ids": [-HUGE]}, ["stop_token_ids is a number of 16610 bits"]),
        ({"bad_words": "a"}, ["bad_words", "list of texts"]),
        ({"bad_words": [""]}, ["bad_words", "not empty"]),
        ({"bad_word_ids": [[]]}, ["bad_word_ids", "not empty"]),
        ({"bad_word_ids": [5]}, ["bad_word_ids", "5"]),
        ({"bad_word_ids": [[-5]]}, ["bad_word_ids", "-5"]),
        ({"logprobs": -1}, ["logprobs", "-1", ">= 0"]),
        ({"logprobs": 1.0}, ["logprobs", "1.0"]),
        ({"logprobs": True}, ["logprobs", "True"]),
        ({"prompt_logprobs": -1}, ["prompt_logprobs", "-1"]),
        ({"structured_output": "json"}, ["structured_output", "exactly one of json, regex, cho"]),
        ({"structured_output": {}}, ["structured_output", "exactly one"]),
        ({"structured_output": {"json": {}, "regex": "a"}}, ["structured_output", "exactly one"]),
        ({"structured_output": {"json": 5}}, ["structured_output json", "5"]),
        ({"structured_output": {"regex": 5}}, ["structured_output regex", "5"]),
        ({"structured_output": {"choice": []}}, ["structured_output choice", "at least one"]),
        ({"structured_output": {"choice": "a"}}, ["structured_output choice", "list of texts"]),
    ],
    ids=lambda value: value_text(value)[:40] if type(value) is dict else "",
)
def test_i01_j04_impossible_settings_are_refused_by_name_and_value(settings, fragments):
    with pytest.raises(RequestError) as error:
        SamplingParams(**settings)

    assert all(fragment in str(error.value) for fragment in fragments)


@pytest.mark.parametrize("top_k", [0, -1, None, 1, 10**7])
def test_i03_every_documented_top_k_is_accepted(top_k):
    assert SamplingParams(top_k=top_k).top_k == top_k


def test_temperature_zero_and_top_k_one_are_greedy():
    assert SamplingParams(temperature=0).is_greedy
    assert SamplingParams(top_k=1).is_greedy
    assert not SamplingParams().is_greedy


def test_what_is_given_in_other_forms_is_kept_in_one():
    params = SamplingParams(
        stop="a",
        bad_words=None,
        bad_word_ids=[[1, 2]],
        stop_token_ids=[3],
        logit_bias={"5": 1, 6: -2},
        structured_output={"choice": ("a", "b")},
    )

    assert params.stop == ("a",)
    assert params.bad_words == ()
    assert params.bad_word_ids == ((1, 2),)
    assert params.stop_token_ids == (3,)
    assert params.logit_bias == {5: 1.0, 6: -2.0}
    assert params.structured_output == {"choice": ["a", "b"]}
    assert SamplingParams(stop=None).stop == ()


def test_settings_with_mappings_still_compare_copy_and_hash():
    params = SamplingParams(logit_bias={5: 1}, structured_output={"json": {"type": "object"}})

    assert params == replace(params)
    assert hash(params) == hash(replace(params))
    assert params != replace(params, logit_bias={5: 2})


def test_settings_do_not_change_with_what_they_were_made_of():
    bias, words = {5: 1.0}, [[1, 2]]
    params = SamplingParams(logit_bias=bias, bad_word_ids=words)
    bias[5] = 9
    words[0].append(3)

    assert params.logit_bias == {5: 1.0}
    assert params.bad_word_ids == ((1, 2),)


@pytest.mark.parametrize("max_tokens", [None, 1, 10**9])
def test_j04_j05_max_tokens_may_be_left_out_or_exceed_what_is_left(max_tokens):
    """None is up to ``max_model_len``, to which anything larger is cut as well."""
    assert SamplingParams(max_tokens=max_tokens).max_tokens == max_tokens


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("temperature", [0, 1])
def test_several_samples_may_be_greedy(n, temperature):
    assert SamplingParams(n=n, temperature=temperature).n == n
