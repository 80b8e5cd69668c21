"""Sampling cases in a whole engine: neighbours, seeds, logits that are no numbers, broken steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from sampling_oracle import expected_tokens

from noria.kernels.cpu import CpuKernels
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
PROMPT = [(3 * i * i + 1) % VOCAB for i in range(21)]


def test_i02_rows_with_and_without_top_k_share_steps(make_engine, dense):
    """Greedy; 5; off in three ways; far more than the vocabulary."""
    tiny = make_engine()
    hot = SamplingParams(temperature=5, seed=3, max_tokens=12)
    params = [SamplingParams(temperature=0, max_tokens=12)]
    params += [replace(hot, top_k=top_k) for top_k in (5, None, 0, -1, 10**7)]

    requests = [tiny.submit([7, 8], one) for one in params]
    tiny.run()

    tokens = [request.output_token_ids for request in requests]
    assert tokens[:2] == [dense.generate([7, 8], one, 12) for one in params[:2]]
    full = dense.generate([7, 8], hot, 12)
    assert tokens[2:] == [full] * 4
    assert len({*map(tuple, tokens)}) == 3


def test_i06_a_penalty_does_not_count_the_padding_of_a_longer_neighbour(
    make_engine, make_shape, dense
):
    """Token 0, with which lists of ids could be padded, is one that the request likes best."""
    shape, biased = make_shape(sampler_features=ALL), {0: 6.0}
    params = SamplingParams(
        temperature=0, frequency_penalty=1.0, logit_bias=biased, logprobs=5, max_tokens=12
    )
    tokens, logprobs = [], []
    for neighbour in ([], [[*range(50)]], [[0] * 50, [1] * 3]):
        tiny = make_engine(shape)
        request = tiny.submit([5, 9], params)
        for prompt in neighbour:
            tiny.submit(prompt, replace(params, repetition_penalty=1.3))
        tiny.run()
        tokens.append(request.output_token_ids)
        logprobs.append(request.output_logprobs)

    expected = expected_tokens(dense, [5, 9], params, num_tokens=12)
    assert expected.count(0) > 1, "else its penalty would not matter"
    unpenalised = expected_tokens(
        dense, [5, 9], replace(params, frequency_penalty=0.0), num_tokens=12
    )
    assert expected != unpenalised
    assert tokens == [expected] * 3
    assert logprobs[0] == logprobs[1] == logprobs[2]


SHAPES = {
    "one-bucket": {"tokens": (64,), "seqs": (8,)},
    "small-buckets": {"tokens": (16, 64), "seqs": (1, 2, 4, 8), "decode_context": (16, 32)},
    "chunks": {"tokens": (8,), "max_num_batched_tokens": 8, "seqs": (1, 3, 8)},
    "preempting": {"num_blocks": 1 + 14, "seqs": (2, 8)},
    "preempting-chunks": {"num_blocks": 1 + 14, "tokens": (8,), "max_num_batched_tokens": 8},
}


SEEDED = SamplingParams(
    seed=42,
    temperature=1.3,
    min_p=0.01,
    frequency_penalty=0.5,
    repetition_penalty=1.1,
    logprobs=4,
    n=2,
    max_tokens=14,
)
COMPILED = {"kernels": CpuKernels(), "dtype": torch.float32}


@pytest.fixture(scope="module")
def alone(make_engine, make_shape):
    shape = make_shape(tokens=(64,), seqs=(2,), max_num_seqs=2, max_num_prefill_seqs=2)
    tiny = make_engine(replace(shape, sampler_features=ALL), **COMPILED)
    samples = tiny.engine.submit(PROMPT, SEEDED)
    tiny.run()
    return samples


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_i04_a_seed_gives_the_same_in_any_batch_bucket_and_chunk_and_after_preemption(
    make_engine, make_shape, dense, alone, shape
):
    """Tokens and logprobs, bit by bit, in compiled fp32; neighbours are unseeded and leave."""
    tiny = make_engine(make_shape(sampler_features=ALL, **shape), **COMPILED)

    for is_last in (False, True):
        first = () if is_last else tiny.engine.submit(PROMPT, SEEDED)
        others = [tiny.submit([i] * (3 * i), SamplingParams(max_tokens=3 + i)) for i in range(1, 7)]
        samples = first or tiny.engine.submit(PROMPT, SEEDED)
        tiny.run()

        for sample, one in zip(samples, alone, strict=True):
            assert sample.output_token_ids == one.output_token_ids
            assert sample.output_logprobs == one.output_logprobs
        num_preemptions = sum(one.num_preemptions for one in (*samples, *others))
        assert (num_preemptions > 0) == ("num_blocks" in shape)
    assert alone[0].output_token_ids == expected_tokens(dense, PROMPT, SEEDED, num_tokens=14)
    assert alone[1].output_token_ids != alone[0].output_token_ids


def poison(tiny, values):
    """Change logits behind a model's graph: request -> (output length, function of its row)."""
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for row, scheduled in enumerate(output.requests):
            for request, (length, change) in values.items():
                is_row = scheduled.request_id == request.request_id
                if is_row and len(request.output_token_ids) == length:
                    change(graph.logits_RV[row])

    tiny.runner.run_graph = run_graph


def at(token_id, value):
    def change(row_V):
        row_V[token_id] = value

    return change


@pytest.mark.parametrize("length", [0, 3], ids=["first-token", "later"])
@pytest.mark.parametrize("kernels", ["reference", "cpu"])
def test_i08_rows_with_logits_that_are_no_numbers_end_alone(
    make_engine, make_shape, kernels, length
):
    """All NaN, one NaN and nothing above -inf are errors; one +inf is a sure token."""
    build = COMPILED if kernels == "cpu" else {}
    shape = make_shape(sampler_features=ALL, seqs=(4, 8))
    params = [SamplingParams(temperature=0, max_tokens=8), SamplingParams(seed=5, max_tokens=8)]
    changes = {
        "all": lambda row_V: row_V.fill_(math.nan),
        "one": at(17, math.nan),
        "none": lambda row_V: row_V.fill_(-math.inf),
        "sure": at(23, math.inf),
    }
    prompts = [[i, 2, i] for i in range(2 * len(changes))]
    clean = make_engine(shape, **build)
    expected = [clean.generate([p], params[i % 2])[0] for i, p in enumerate(prompts)]
    good_tokens = clean.generate([[9, 9, 4]], params[1])[0]

    tiny = make_engine(replace(shape, num_blocks=1 + 40), **build)
    requests = [tiny.submit(p, params[i % 2]) for i, p in enumerate(prompts)]
    poison(tiny, {one: (length, [*changes.values()][i // 2]) for i, one in enumerate(requests)})
    good = tiny.submit([9, 9, 4], params[1])
    tiny.run()

    for index, request in enumerate(requests[:6]):
        assert request.finish_reason is FinishReason.ERROR
        assert "logits" in str(request.error)
        assert request.output_token_ids == expected[index][:length]
    for index, request in enumerate(requests[6:], 6):
        assert request.finish_reason is FinishReason.LENGTH
        assert request.output_token_ids[: length + 1] == [*expected[index][:length], 23]
    assert good.output_token_ids == good_tokens


def test_i08_blocks_of_a_failed_request_may_hold_nan_and_serve_others_well(make_engine, make_shape):
    """Its keys and values are NaN; every block of the pool is used again, in part and whole."""
    tiny = make_engine(make_shape(num_blocks=1 + 16))
    clean = make_engine(make_shape(num_blocks=1 + 16))
    greedy = SamplingParams(temperature=0, max_tokens=8)
    bad = tiny.submit([1] * 60, greedy)
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        if not bad.is_finished:
            graph.logits_RV.fill_(math.nan)
            for cache in (*tiny.cache.keys, *tiny.cache.values):
                cache.fill_(math.nan)

    tiny.runner.run_graph = run_graph
    tiny.run()
    prompts = [[5] * 30, [6] * 17, [7]]

    assert bad.finish_reason is FinishReason.ERROR
    assert tiny.generate(prompts, greedy) == clean.generate(prompts, greedy)


def test_i11_a_row_of_each_kind_joins_and_leaves_while_one_is_forced(
    make_engine, make_shape, dense
):
    """Plain, repetition penalty and id 5 forced; a plain one joins later, some end early."""
    tiny = make_engine(make_shape(sampler_features=ALL))
    forced = SamplingParams(seed=1, logit_bias={5: 100}, max_tokens=30)
    plain = SamplingParams(seed=2, max_tokens=4)
    repeating = SamplingParams(seed=3, repetition_penalty=1.5, max_tokens=20)
    submitted = [([1], plain), ([2, 2], repeating), ([3], forced)]

    requests = [tiny.submit(*one) for one in submitted]
    for _ in range(6):
        tiny.engine.step()
    submitted.append(([4, 4], replace(plain, max_tokens=12)))
    requests.append(tiny.submit(*submitted[-1]))
    tiny.run()

    assert requests[2].output_token_ids == [5] * 30
    for request, (prompt, params) in zip(requests, submitted, strict=True):
        expected = expected_tokens(dense, prompt, params, num_tokens=params.max_tokens)
        assert request.output_token_ids == expected
