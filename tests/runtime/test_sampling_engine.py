"""Sampling in a whole engine, against a dense model and a loop over the vocabulary."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from sampling_oracle import expected_tokens
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.errors import RequestError
from noria.runtime.random_draws import sample_seed
from noria.runtime.request import FinishReason
from noria.runtime.sampling_params import SamplingParams

VOCAB = 61
ALL = (
    "greedy",
    "top_k_top_p",
    "penalties",
    "logit_bias",
    "structured_output",
    "logprobs",
    "prompt_logprobs",
)
ENDS = frozenset({2, 5, 7})
NUM_TOKENS = 12
SETTINGS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "plain": {},
    "seeded": {"seed": 42},
    "min_p": {"min_p": 0.2, "temperature": 1.5},
    "filters": {"min_p": 0.01, "top_k": 9, "top_p": 0.9, "temperature": 2.0},
    "repetition": {"repetition_penalty": 1.8, "temperature": 0},
    "frequency": {"frequency_penalty": 1.5, "presence_penalty": -0.5},
    "bias": {"logit_bias": {4: 3.0, 9: -50.0}, "repetition_penalty": 1.2},
    "forced": {"logit_bias": {4: 100}},
    "bad_words": {"bad_word_ids": [[4], [11, 12], [9, 9]], "temperature": 0.7},
    "min_tokens": {"min_tokens": 6, "logit_bias": {2: 60, 5: 60, 11: 55}},
    "logprobs": {"logprobs": 3, "top_k": 2},
}


def params_of(name: str) -> SamplingParams:
    return SamplingParams(**{"seed": len(name), "max_tokens": NUM_TOKENS, **SETTINGS[name]})


def prompt_of(name: str) -> list[int]:
    rng = random.Random(name)
    return [rng.randrange(VOCAB) for _ in range(rng.randrange(1, 20))]


def expected(dense: Any, prompt: Sequence[int], params: SamplingParams) -> list[int]:
    return expected_tokens(dense, prompt, params, num_tokens=NUM_TOKENS, end_token_ids=ENDS)


@pytest.fixture(scope="module")
def engine(make_engine, make_shape):
    return make_engine(make_shape(sampler_features=ALL, end_token_ids=ENDS, num_blocks=161))


@pytest.mark.parametrize("name", SETTINGS)
def test_i04_a_request_alone_gets_what_the_dense_model_gives(engine, dense, name: str):
    (tokens,) = engine.generate([prompt_of(name)], params_of(name))

    assert tokens == expected(dense, prompt_of(name), params_of(name))


@pytest.mark.parametrize("seed", range(4))
def test_i04_i06_i11_requests_of_all_kinds_share_steps_and_keep_their_tokens(engine, dense, seed):
    """In any order, joining while others run, in whatever rows and buckets that makes."""
    rng = random.Random(seed)
    names = rng.sample(list(SETTINGS), k=len(SETTINGS))
    requests = {}
    for name in names:
        requests[name] = engine.submit(prompt_of(name), params_of(name))
        for _ in range(rng.randrange(3)):
            engine.engine.step()
    engine.run()

    for name, request in requests.items():
        assert request.output_token_ids == expected(dense, prompt_of(name), params_of(name))


def test_the_settings_of_these_tests_make_a_difference(dense):
    """Each feature changes the tokens of its own request: none of the tests above is empty."""
    for name, settings in SETTINGS.items():
        if name in ("greedy", "plain", "seeded", "logprobs"):
            continue
        plain = SamplingParams(temperature=settings.get("temperature", 1.0), seed=len(name))
        prompt = prompt_of(name)

        changed = expected(dense, prompt, params_of(name))
        assert changed != expected(dense, prompt, plain), name


def test_i11_a_forced_row_is_forced_to_the_end(engine):
    forced = engine.submit([1, 2, 3], replace(params_of("forced"), max_tokens=30))
    others = [engine.submit(prompt_of(name), params_of(name)) for name in ("plain", "repetition")]
    for _ in range(5):
        engine.engine.step()
    others.append(engine.submit([9], SamplingParams(max_tokens=3)))
    engine.run()

    assert forced.output_token_ids == [4] * 30
    assert all(other.is_finished for other in others)


def test_j07_every_end_token_ends_and_min_tokens_holds_all_of_them_back(engine):
    for end in sorted(ENDS):
        params = SamplingParams(logit_bias={end: 100}, max_tokens=9)
        ended = engine.submit([1, 2], params)
        later = engine.submit([1, 2], replace(params, min_tokens=4))
        ignoring = engine.submit([1, 2], replace(params, ignore_eos=True))
        engine.run()

        assert (ended.output_token_ids, ended.finish_reason) == ([end], FinishReason.STOP)
        assert later.output_token_ids[4:] == [end]
        assert not ENDS & set(later.output_token_ids[:4])
        assert ignoring.output_token_ids == [end] * 9
        assert ignoring.finish_reason is FinishReason.LENGTH


def test_samples_of_one_prompt_are_requests_with_seeds_of_their_own(engine):
    params = SamplingParams(seed=3, max_tokens=8, temperature=1.5)

    samples = engine.engine.submit([5, 6, 7], replace(params, n=4))
    engine.run()

    alone = [
        engine.generate([[5, 6, 7]], replace(params, seed=sample_seed(3, sample)))[0]
        for sample in range(4)
    ]
    assert [one.output_token_ids for one in samples] == alone
    assert len({tuple(tokens) for tokens in alone}) == 4
    assert alone[0] == engine.generate([[5, 6, 7]], params)[0]


@pytest.mark.parametrize("kernels", [ReferenceKernels(), CpuKernels()], ids=["reference", "cpu"])
def test_i08_a_request_with_nan_logits_fails_alone(
    make_engine, make_shape, tiny_architecture, kernels
):
    """Token 60 has a NaN embedding: whoever's prompt holds it has no logits."""
    architecture = replace(tiny_architecture, tie_word_embeddings=False)
    tensors = untied_tensors(architecture)
    tensors["model.embed_tokens.weight"][60] = math.nan
    shape = make_shape(sampler_features=ALL)
    dtype = torch.float64 if kernels.name == "reference" else torch.float32
    build = {"kernels": kernels, "dtype": dtype, "architecture": architecture, "tensors": tensors}
    settings = [
        SamplingParams(seed=1, max_tokens=6, logprobs=2),
        SamplingParams(temperature=0, max_tokens=6, repetition_penalty=1.2),
    ]
    tiny = make_engine(shape, **build)
    bans = {"bad_word_ids": [[60]]}
    alone = [tiny.generate([[3, 4]], replace(params, **bans))[0] for params in settings]

    good = [tiny.submit([3, 4], replace(params, **bans)) for params in settings]
    bad = [tiny.submit([3, 60, 4], params) for params in settings]
    tiny.run()

    assert [request.output_token_ids for request in good] == alone
    assert [request.finish_reason for request in bad] == [FinishReason.ERROR] * 2
    assert [request.output_token_ids for request in bad] == [[], []]
    assert all("logits" in str(request.error) for request in bad)


def untied_tensors(architecture: Any) -> dict[str, Tensor]:
    from noria.runtime.models.architecture import expected_tensors

    generator = torch.Generator().manual_seed(0)
    return {
        name: 0.3 * torch.randn(shape, generator=generator, dtype=torch.float64)
        for name, shape in expected_tensors(architecture).items()
    }


def test_logprobs_are_those_of_the_dense_model(engine, dense):
    prompt = prompt_of("logprobs")
    params = replace(params_of("logprobs"), prompt_logprobs=4)

    request = engine.submit(prompt, params)
    engine.run()

    token_ids = [*prompt, *request.output_token_ids]
    logprobs = dense.logits(token_ids).log_softmax(1)
    found = [*request.prompt_logprobs, *request.output_logprobs]
    assert len(request.prompt_logprobs) == len(prompt) - 1
    assert len(request.output_logprobs) == len(request.output_token_ids)
    for place, one in enumerate(found):
        row = logprobs[place]
        num_top = 4 if place < len(prompt) - 1 else 3
        ranked = row.argsort(descending=True, stable=True).tolist()
        assert one.logprob == pytest.approx(float(row[token_ids[place + 1]]), abs=1e-5)
        assert one.rank == 1 + ranked.index(token_ids[place + 1])
        assert [token_id for token_id, _ in one.top] == ranked[:num_top]
        for token_id, logprob in one.top:
            assert logprob == pytest.approx(float(row[token_id]), abs=1e-5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"logprobs": 21}, r"logprobs is 21; max_logprobs allows \d+"),
        ({"logit_bias": {61: 1}}, "logit_bias holds 61; token ids of this model are 0 .. 60"),
        ({"bad_word_ids": [[61]]}, "bad_word_ids holds 61; token ids"),
        ({"stop_token_ids": [61]}, "stop_token_ids holds 61; token ids"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_i09_what_cannot_run_is_refused_at_submission_and_leaves_nothing(engine, settings, message):
    with pytest.raises(RequestError, match=message):
        engine.submit([1, 2], SamplingParams(**settings))

    assert not engine.engine.has_unfinished
    engine.run()


def test_requests_keep_tokens_and_logprobs_when_they_are_preempted(engine, make_engine, make_shape):
    """A pool too small for all of them: some lose their blocks and are computed again."""
    shape = make_shape(sampler_features=ALL, end_token_ids=ENDS, num_blocks=1 + 14)
    small = make_engine(shape)
    settings = [replace(params_of(name), logprobs=2) for name in SETTINGS]
    prompts = [[*range(10)] for _ in settings]

    requests = [small.submit(p, one) for p, one in zip(prompts, settings, strict=True)]
    small.run()

    assert sum(request.num_preemptions for request in requests) > 0
    for prompt, one, request in zip(prompts, settings, requests, strict=True):
        alone = engine.submit(prompt, one)
        engine.run()
        assert request.output_token_ids == alone.output_token_ids
        assert request.output_logprobs == alone.output_logprobs
