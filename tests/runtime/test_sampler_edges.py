"""Samplers: logprobs, the scorer of prompts, and rows that cannot be drawn from."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from sampler_rows import GREEDY, TARGETS, VOCAB, Allowed, random_logits, row, samplers

from noria.kernels.kernel_set import KernelSet
from noria.runtime.graph_source import CompileHere
from noria.runtime.sampled_token import MIN_LOGPROB, SampledToken
from noria.runtime.sampler import compile_scorer
from noria.runtime.sampler_stages import SamplerShape
from noria.runtime.sampling_params import SamplingParams


@TARGETS
def test_i08_rows_without_a_usable_logit_get_no_token_and_harm_no_others(kernels: KernelSet):
    logits = random_logits(5)
    rows = {at: row(SamplingParams(logprobs=2), seed=at) for at in range(5)}
    clean = samplers(logits, kernels).sample(rows)
    logits[0], logits[1, 7], logits[2, 9], logits[3] = math.nan, math.inf, math.nan, -math.inf

    sampled = samplers(logits, kernels).sample(rows)

    assert [sampled[at] for at in (0, 2, 3)] == [SampledToken(-1, None)] * 3
    assert sampled[1].token_id == 7
    assert sampled[4] == clean[4]


@TARGETS
def test_i08_a_row_whose_every_token_is_banned_gets_none(kernels: KernelSet):
    banned = row(SamplingParams(bad_word_ids=[[3]]), constraint=Allowed(3))

    assert samplers(random_logits(1), kernels).sample({0: banned}) == [SampledToken(-1)]


@TARGETS
@pytest.mark.parametrize("vocab", [61, 64])
def test_h08_ids_are_those_of_the_vocabulary_though_all_its_logits_are_negative(kernels, vocab):
    """A padded head would win with its zeros; rows beside hold large logits."""
    params = [replace(GREEDY), SamplingParams(temperature=50), SamplingParams(temperature=50)]
    logits = torch.full((4, vocab), 1e4)
    logits[1::2] = -random_logits(2, vocab=vocab).abs() - 1

    for seed in range(40):
        for one in params:
            sampled = samplers(logits, kernels).sample({1: row(one, seed=seed)})
            assert 0 <= sampled[0].token_id < vocab


@TARGETS
@pytest.mark.parametrize("count", [0, 5, 61, 100])
def test_i09_logprobs_are_finite_numbers_of_the_raw_logits(kernels: KernelSet, count: int):
    """With top_k 1 all other tokens are filtered, yet theirs are the model's own."""
    logits = random_logits(2)
    logits[:, 7] = -math.inf
    params = SamplingParams(top_k=1, logprobs=count, logit_bias={7: 100, 9: -100})
    expected = logits[0].double().log_softmax(0)

    (sampled, _) = samplers(logits, kernels, num=100).sample({0: row(params), 1: row(GREEDY)})

    found = sampled.logprobs
    assert found is not None
    assert len(found.top) == min(count, VOCAB)
    ranked = [token_id for token_id, _ in found.top]
    assert ranked == expected.argsort(descending=True, stable=True).tolist()[:count]
    for token_id, logprob in (*found.top, (sampled.token_id, found.logprob)):
        wanted = MIN_LOGPROB if token_id == 7 else float(expected[token_id])
        assert logprob == pytest.approx(wanted, abs=1e-5)
    json.dumps(found.top, allow_nan=False)


def test_i09_a_token_that_only_a_bias_made_possible_has_the_least_logprob():
    logits = torch.full((1, VOCAB), -1e30)
    logits[0, 3] = 0
    banned = row(SamplingParams(logprobs=1, bad_word_ids=[[3]], temperature=0))

    (sampled,) = samplers(logits).sample({0: banned})

    assert sampled.token_id == 0
    assert sampled.logprobs is not None
    assert sampled.logprobs.logprob == MIN_LOGPROB
    assert sampled.logprobs.rank == 2
    assert sampled.logprobs.top == ((3, 0.0),)


def test_only_rows_that_ask_get_logprobs():
    rows = {0: row(GREEDY), 2: row(replace(GREEDY, logprobs=0))}

    plain, asking = samplers(random_logits(3)).sample(rows)

    assert plain.logprobs is None
    assert asking.logprobs is not None
    assert (asking.logprobs.rank, asking.logprobs.top) == (1, ())


@TARGETS
def test_a_scorer_gives_the_logprobs_of_given_tokens(kernels: KernelSet):
    logits = random_logits(6)
    scorer = compile_scorer(kernels, CompileHere(kernels), logits, SamplerShape(6, VOCAB, 64, 5))
    expected = logits.double().log_softmax(1)
    first = scorer.score({0: 3, 1: 4, 5: 60}, {0: 5, 1: 0, 5: 2})
    logits.copy_(logits.flip(0))

    second = scorer.score({0: 60}, {0: 2})

    assert [len(one.top) for one in first] == [5, 0, 2]
    assert second == first[2:]
    for place, token_id, found in zip((0, 1, 5), (3, 4, 60), first, strict=True):
        assert found.logprob == pytest.approx(float(expected[place, token_id]), abs=1e-5)
        assert found.rank == 1 + int(
            (logits.flip(0)[place] > logits.flip(0)[place, token_id]).sum()
        )
