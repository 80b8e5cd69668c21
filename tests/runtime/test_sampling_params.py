from __future__ import annotations

import pytest

from noria.runtime.errors import RequestError
from noria.runtime.sampling_params import SamplingParams


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
    ],
    ids=lambda value: "-".join(f"{k}={v}" for k, v in value.items()) if type(value) is dict else "",
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
