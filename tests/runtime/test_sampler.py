"""Samplers over logits that are given: which one a step takes, and what its rows get."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampler_rows import (
    ALL,
    EXTRAS,
    GREEDY,
    REFERENCE,
    TARGETS,
    VOCAB,
    compiled,
    extra,
    random_logits,
    row,
    samplers,
)
from torch import Tensor

from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.runtime.sampler import needed_features
from noria.runtime.sampler_features import sampler_variants
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import SamplerRow, SamplingState


@pytest.mark.parametrize(
    ("features", "variants"),
    [
        (["greedy"], [{"greedy"}]),
        (["top_k_top_p", "greedy"], [{"greedy"}, {"greedy", "top_k_top_p"}]),
        (["greedy", "logprobs"], [{"greedy"}, {"greedy", "logprobs"}]),
        (["greedy", "prompt_logprobs"], [{"greedy"}]),
        (list(ALL), [{"greedy"}, {"greedy", "top_k_top_p"}, set(ALL)]),
    ],
    ids=["greedy", "draws", "greedy_logprobs", "prompt_logprobs", "all"],
)
def test_one_sampler_takes_one_draws_and_one_does_all(features, variants):
    assert [set(one) for one in sampler_variants(features)] == variants


def test_a_step_takes_the_least_sampler_that_covers_its_rows():
    one = samplers(random_logits(4))

    def taken(*indices: int) -> int:
        needed = {name for i in indices for name in needed_features(extra(i))}
        return one.graphs.index(one.covering(needed))

    assert taken(1) == 0
    assert taken(1, 0) == 1
    assert [taken(1, i) for i in range(2, len(EXTRAS))] == [2] * (len(EXTRAS) - 2)


def test_a_request_that_needs_nothing_more_is_served_by_less():
    """After ``min_tokens`` tokens no end token is banned any more."""
    params = SamplingParams(temperature=0, min_tokens=2)

    assert set(needed_features(row(params, end=(1,), output=(5,)))) == {"greedy", "logit_bias"}
    assert set(needed_features(row(params, end=(1,), output=(5, 6)))) == {"greedy"}


@TARGETS
@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.dictionaries(st.integers(0, 3), st.integers(0, len(EXTRAS) - 1), min_size=1),
        min_size=1,
        max_size=6,
    )
)
def test_i11_rows_come_move_and_go_and_nothing_of_an_earlier_step_remains(kernels, steps):
    """Every step on used samplers is the step on new ones, down to every padded input."""
    logits = random_logits(4, seed=3)
    used = samplers(logits, kernels)
    for step in steps:
        rows = {place: extra(index, seed=index) for place, index in step.items()}
        new = compiled.__wrapped__(ReferenceKernels(), 4, VOCAB, 20)
        new[0].copy_(logits)

        sampled, expected = used.sample(rows), new[1].sample(rows)

        assert [one.token_id for one in sampled] == [one.token_id for one in expected]
        needed = {name for one in rows.values() for name in needed_features(one)}
        for name, tensor in new[1].covering(needed).inputs.items():
            assert torch.equal(tensor, used.covering(needed).inputs[name]), name


@TARGETS
@pytest.mark.parametrize("index", range(len(EXTRAS)))
def test_i04_i11_a_row_gets_the_same_in_any_place_beside_any_neighbours(kernels, index: int):
    logits_V = random_logits(1, seed=index)[0]
    (alone,) = samplers(logits_V[None], kernels).sample({0: extra(index)})
    rng = random.Random(index)

    for num_rows in (1, 2, 8):
        for _ in range(4):
            place = rng.randrange(num_rows)
            logits = random_logits(num_rows, seed=rng.randrange(99))
            logits[place] = logits_V
            rows = {at: extra(rng.randrange(len(EXTRAS)), seed=at) for at in range(num_rows)}
            rows[place] = extra(index)
            sampled = dict(zip(rows, samplers(logits, kernels).sample(rows), strict=True))

            assert sampled[place] == alone


@TARGETS
def test_i11_a_forced_row_is_forced_to_the_end(kernels: KernelSet):
    """Plain, repetition penalty and forced rows; one joins later, one leaves, rows move."""
    names = ["plain", "repetition", "forced"]
    settings = {
        "plain": SamplingParams(),
        "repetition": SamplingParams(repetition_penalty=1.3),
        "forced": SamplingParams(logit_bias={5: 100}),
        "joined": SamplingParams(temperature=0),
    }
    states = {
        name: SamplingState(
            params, seed=1, prompt_token_ids=(3,), end_token_ids=(), vocab_size=VOCAB
        )
        for name, params in settings.items()
    }
    forced = []
    for step in range(12):
        if step == 4:
            names = ["joined", *names]
        if step == 8:
            names.remove("plain")
        one = samplers(random_logits(4, seed=step), kernels)
        sampled = one.sample({at: states[name].row(1 + step) for at, name in enumerate(names)})
        for name, token in zip(names, sampled, strict=True):
            states[name].append(token.token_id)
        forced.append(sampled[names.index("forced")].token_id)

    assert forced == [5] * 12


@TARGETS
def test_i01_zero_and_tiny_temperatures_share_a_step_with_others_and_a_banned_token(kernels):
    """The likeliest token is banned; 0 and tiny temperatures always take the next one."""
    logits = random_logits(1, seed=8).repeat(5, 1)
    best, second = logits[0].topk(2).indices.tolist()
    settings: list[dict[str, float]] = [{"temperature": t} for t in (0, 1e-6, 1e-4, 2.0)]
    settings.append({"top_p": 1e-4})
    params = [SamplingParams(bad_word_ids=[[best]], **one) for one in settings]

    for seed in range(50):
        rows = {at: row(one, seed=seed) for at, one in enumerate(params)}
        ids = [one.token_id for one in samplers(logits, kernels).sample(rows)]

        assert [ids[at] for at in (0, 1, 2, 4)] == [second] * 4
        assert ids[3] != best


@TARGETS
def test_i02_greedy_small_off_and_huge_top_k_share_a_step(kernels: KernelSet):
    logits = random_logits(1, seed=4).repeat(4, 1)
    one = samplers(logits, kernels)
    params = [GREEDY, *(SamplingParams(temperature=9, top_k=k) for k in (5, None, 10**7))]

    draws = [
        one.sample({at: row(p, position=position) for at, p in enumerate(params)})
        for position in range(400)
    ]

    greedy, top_5, off, huge = ([token.token_id for token in c] for c in zip(*draws, strict=True))
    assert set(greedy) == {int(logits[0].argmax())}
    assert set(top_5) == set(logits[0].topk(5).indices.tolist())
    assert off == huge
    assert len(set(off)) > VOCAB * 3 // 4


def test_i03_top_k_of_0_minus_1_and_none_is_off_and_1_is_greedy():
    one = samplers(torch.zeros(4, VOCAB).index_fill_(1, torch.tensor([17]), 0.1))
    params = [SamplingParams(top_k=k) for k in (0, -1, None, 1)]

    draws = [
        [
            token.token_id
            for token in one.sample({at: row(p, seed=s) for at, p in enumerate(params)})
        ]
        for s in range(500)
    ]

    zero, minus, none, first = (set(column) for column in zip(*draws, strict=True))
    assert zero == minus == none
    assert len(zero) > 50
    assert first == {17}


@TARGETS
def test_i06_a_penalty_is_the_same_beside_a_neighbour_with_a_longer_history(kernels: KernelSet):
    """The pad id of a naive history, 0, is the likeliest token of the request."""
    logits = random_logits(2, seed=6)
    logits[0, 0] = 9.0
    penalised = row(SamplingParams(frequency_penalty=1.0, logprobs=5), output=(5, 9, 9))
    longer = row(SamplingParams(frequency_penalty=1.0), output=tuple(range(50)))

    alone = samplers(logits, kernels).sample({0: penalised})
    beside = samplers(logits, kernels).sample({0: penalised, 1: longer})

    assert beside[0] == alone[0]


@TARGETS
@pytest.mark.parametrize("index", range(len(EXTRAS)))
def test_rows_get_what_a_loop_over_the_vocabulary_gives(kernels: KernelSet, index: int):
    logits = random_logits(1, seed=50 + index)
    for seed in range(20):
        asked = extra(index, seed=seed)
        (sampled,) = samplers(logits, kernels).sample({0: asked})

        assert sampled.token_id == expected_token(logits[0], asked)


def expected_token(logits_V: Tensor, asked: SamplerRow) -> int:
    """Apply bitmask, bias and penalties one token at a time, then draw by the reference."""
    values = logits_V.tolist()
    history = dict(zip(*(a.tolist() for a in asked.history), strict=True)) if asked.history else {}
    bias = dict(zip(*(a.tolist() for a in asked.bias), strict=True)) if asked.bias else {}
    params = asked.params
    for token in range(len(values)):
        if asked.bitmask is not None and not asked.bitmask[token // 32] >> token % 32 & 1:
            values[token] = -math.inf
        values[token] += bias.get(token, 0.0)
        if token in history:
            is_above = values[token] > 0
            rate = params.repetition_penalty
            values[token] = values[token] / rate if is_above else values[token] * rate
            values[token] -= params.frequency_penalty * history[token]
            values[token] -= params.presence_penalty * (history[token] > 0)
    plain = SamplerRow(params, asked.seed, asked.position)
    (sampled,) = samplers(torch.tensor([values]), REFERENCE).sample({0: plain})
    return sampled.token_id


@TARGETS
def test_a_step_that_draws_nothing_runs_nothing(kernels: KernelSet):
    assert samplers(random_logits(2), kernels).sample({}) == []
