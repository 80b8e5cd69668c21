from __future__ import annotations

import random
from dataclasses import replace

import pytest

from noria.runtime.engine import NO_WATCH, OutputWatch
from noria.runtime.errors import RequestError
from noria.runtime.request import FinishReason, Request
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8)


def test_tokens_equal_the_dense_model(tiny, dense):
    prompts = [[1 + i, 2 * i + 5, 7] + [i] * i for i in range(12)]

    tokens = tiny.generate(prompts, GREEDY)

    assert tokens == [dense.generate(prompt, GREEDY, 8) for prompt in prompts]


def test_sampled_tokens_equal_the_dense_model(tiny, dense):
    params = [
        SamplingParams(temperature=t, top_k=k, top_p=p, seed=s, max_tokens=6)
        for t, k, p, s in [(1.0, None, 1.0, 1), (0.7, 5, 1.0, 2), (1.5, 0, 0.6, 3), (0, 0, 1, 4)]
    ]

    requests = [tiny.submit([3, 1, 4], one) for one in params]
    tiny.run()

    expected = [dense.generate([3, 1, 4], one, 6) for one in params]
    assert [request.output_token_ids for request in requests] == expected


def test_i04_seeded_request_does_not_depend_on_its_neighbours(make_engine):
    params = SamplingParams(seed=42, max_tokens=10)
    alone = make_engine().generate([[5, 6, 7]], params)[0]
    tiny = make_engine()

    neighbours = [tiny.submit([i, i], SamplingParams(max_tokens=4)) for i in range(5)]
    request = tiny.submit([5, 6, 7], params)
    tiny.run()

    assert all(len(other.output_token_ids) == 4 for other in neighbours)
    assert request.output_token_ids == alone


def test_end_token_stops_and_counts_as_output(make_engine, make_shape, dense):
    tokens = dense.generate([9, 9], GREEDY, 8)
    stop = tokens[3]
    expected = tokens[: tokens.index(stop) + 1]
    tiny = make_engine(make_shape(end_token_ids=frozenset({stop})))

    request = tiny.submit([9, 9], GREEDY)
    ignoring = tiny.submit([9, 9], SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    tiny.run()

    assert (request.output_token_ids, request.finish_reason) == (expected, FinishReason.STOP)
    assert (ignoring.output_token_ids, ignoring.finish_reason) == (tokens, FinishReason.LENGTH)


def test_stop_token_ids_of_a_request_end_it_even_when_eos_is_ignored(tiny, dense):
    tokens = dense.generate([9, 9], GREEDY, 8)
    params = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, stop_token_ids=(tokens[2],)
    )

    request = tiny.submit([9, 9], params)
    tiny.run()

    assert request.output_token_ids == tokens[: tokens.index(tokens[2]) + 1]
    assert request.finish_reason is FinishReason.STOP


def test_j04_omitted_max_tokens_runs_to_max_model_len(tiny):
    request = tiny.submit([1] * 60, SamplingParams(temperature=0))
    tiny.run()

    assert len(request.output_token_ids) == 4
    assert request.finish_reason is FinishReason.LENGTH


def test_j05_max_tokens_beyond_the_limit_ends_at_max_model_len(tiny):
    request = tiny.submit([1] * 60, SamplingParams(temperature=0, max_tokens=100))
    tiny.run()

    assert request.num_tokens == 64
    assert request.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("prompt", "fragments"),
    [
        ([1] * 64, ["64 tokens", "max_model_len 64", "63"]),
        ([], ["no tokens"]),
        ([-1], ["-1", "0 .. 60"]),
        ([61], ["61", "0 .. 60"]),
        ([2**40], [str(2**40)]),
        ([1.5], ["1.5"]),
        (["3"], ["'3'"]),
        ([True], ["True"]),
    ],
    ids=["too-long", "empty", "negative", "vocab-size", "huge", "float", "text", "bool"],
)
def test_h07_h09_a_bad_prompt_is_refused_at_submit(tiny, dense, prompt, fragments):
    good = tiny.submit([60, 1], GREEDY)

    with pytest.raises(RequestError) as error:
        tiny.submit(prompt, GREEDY)
    tiny.run()

    assert all(fragment in str(error.value) for fragment in fragments)
    assert good.output_token_ids == dense.generate([60, 1], GREEDY, 8)


def test_b08_a_prompt_longer_than_every_bucket_runs_in_chunks(make_engine, make_shape, dense):
    tiny = make_engine(make_shape(tokens=(16, 32), max_num_batched_tokens=32))

    prompts = [[1, 2, 3] * 17, [4] * 33, [5] * 32]

    assert tiny.generate(prompts, GREEDY) == [dense.generate(one, GREEDY, 8) for one in prompts]
    assert max(bucket.num_rows for bucket in tiny.runner.padding.by_bucket) == 32


def test_f01_request_larger_than_the_pool_is_refused_at_submit(make_engine, make_shape):
    tiny = make_engine(make_shape(num_blocks=5))

    for prompt, max_tokens in [([1] * 20, 1), ([1] * 10, 30)]:
        with pytest.raises(RequestError, match=r"block_size 4; num_blocks 5 gives 4"):
            tiny.submit(prompt, SamplingParams(temperature=0, max_tokens=max_tokens))
    request = tiny.submit([1] * 10, SamplingParams(temperature=0, max_tokens=6))
    tiny.run()

    assert len(request.output_token_ids) == 6


def test_requests_wait_until_the_pool_covers_their_prompt(make_engine, make_shape, dense):
    tiny = make_engine(make_shape(num_blocks=8))
    prompts = [[i + 1] * 9 for i in range(5)]

    requests = [tiny.submit(prompt, GREEDY) for prompt in prompts]
    tiny.engine.step()
    num_running = len(tiny.scheduler.running)
    tiny.run()

    assert num_running == 2
    assert sum(request.num_preemptions for request in requests) > 0
    tokens = [request.output_token_ids for request in requests]
    assert tokens == [dense.generate(prompt, GREEDY, 8) for prompt in prompts]


def test_cancel_frees_blocks_and_leaves_the_others_alone(tiny, dense):
    kept, running, waiting = (tiny.submit([i, 5, i], GREEDY) for i in (1, 2, 3))
    tiny.engine.step()
    tiny.engine.step()

    tiny.engine.cancel(running)
    tiny.engine.cancel(running)
    late = tiny.submit([4, 4], GREEDY)
    tiny.engine.cancel(late)
    tiny.engine.check_invariants()
    tiny.run()

    assert kept.output_token_ids == dense.generate([1, 5, 1], GREEDY, 8)
    assert waiting.output_token_ids == dense.generate([3, 5, 3], GREEDY, 8)
    assert running.finish_reason is late.finish_reason is FinishReason.CANCELLED
    assert len(running.output_token_ids) == 2


def test_no_graph_is_compiled_under_random_traffic(tiny):
    before = tiny.graphs.num_compilations
    rng = random.Random(0)

    for _ in range(40):
        length = rng.randrange(1, 60)
        params = SamplingParams(temperature=rng.choice([0, 1]), max_tokens=rng.randrange(1, 9))
        tiny.submit([rng.randrange(61) for _ in range(length)], params)
        for _ in range(rng.randrange(4)):
            tiny.engine.step()
    tiny.run()

    assert tiny.graphs.num_compilations == before
    assert set(tiny.runner.padding.by_bucket) <= set(tiny.plan.buckets)


def test_padding_counts_real_tokens_only(tiny):
    tiny.generate([[1] * 5, [2] * 6], SamplingParams(temperature=0, max_tokens=3))

    counts = {
        bucket.label: (padding.num_actual_tokens, padding.num_padded_tokens)
        for bucket, padding in tiny.runner.padding.by_bucket.items()
    }
    assert counts == {"prefill_t16_c64": (11, 16), "decode_s2_c64": (4, 4)}


def test_a_request_that_needs_an_unlisted_sampler_is_refused_at_submit(make_engine, make_shape):
    tiny = make_engine(make_shape(sampler_features=("greedy",)))

    with pytest.raises(RequestError, match=r"temperature 0\.7.*top_k_top_p.*sampler_features"):
        tiny.submit([1], SamplingParams(temperature=0.7))
    request = tiny.submit([1], SamplingParams(temperature=1e-6, max_tokens=2))
    tiny.run()

    assert len(request.output_token_ids) == 2


def test_requests_without_a_seed_repeat_with_the_engine_and_differ_in_it(make_engine):
    params = SamplingParams(max_tokens=12)

    first, second = (make_engine().generate([[1, 2], [1, 2]], params) for _ in range(2))

    assert first == second
    assert first[0] != first[1]


@pytest.mark.parametrize("failing_step", range(4))
def test_a_step_that_raises_changes_nothing(make_engine, make_shape, dense, failing_step):
    tiny = make_engine(make_shape(max_num_prefill_seqs=2))
    inner, steps = tiny.runner.execute, iter(range(10_000))

    def execute(output):
        if next(steps) == failing_step:
            inner(output)
            raise KeyboardInterrupt
        return inner(output)

    tiny.runner.execute = execute
    prompts = [[i + 1, 7, i] for i in range(4)]
    requests = [tiny.submit(prompt, GREEDY) for prompt in prompts]

    for _ in range(failing_step):
        tiny.engine.step()
    with pytest.raises(KeyboardInterrupt):
        tiny.engine.step()
    tiny.engine.check_invariants()
    tiny.run()

    tokens = [request.output_token_ids for request in requests]
    assert tokens == [dense.generate(prompt, GREEDY, 8) for prompt in prompts]


def test_i04_a_refused_request_does_not_change_the_draws_of_others(make_engine, make_shape):
    def refuse() -> None:
        raise RequestError("no such grammar")

    params, tokens = SamplingParams(max_tokens=8), []
    for is_bothered in (False, True):
        tiny = make_engine(make_shape(sampler_features=("greedy", "top_k_top_p", "logit_bias")))
        refused = [
            ([1] * 64, params, NO_WATCH),
            ([], params, NO_WATCH),
            ([61], params, NO_WATCH),
            ([1], SamplingParams(logit_bias={61: 1}), NO_WATCH),
            ([1], SamplingParams(stop_token_ids=(61,)), NO_WATCH),
            ([1], params, OutputWatch(new_text=lambda: None, new_constraint=refuse)),
        ]
        for prompt, bad, watch in refused if is_bothered else []:
            with pytest.raises(RequestError):
                tiny.submit(prompt, bad, watch=watch)
        tokens.append(tiny.generate([[1, 2, 3]], params))

    assert tokens[0] == tokens[1]


def test_a_stop_token_beyond_the_vocabulary_is_refused(tiny):
    with pytest.raises(RequestError, match=r"stop_token_ids holds 61.*0 \.\. 60"):
        tiny.submit([1], SamplingParams(stop_token_ids=(3, 61)))


def test_every_sample_tells_once_that_it_has_ended(make_engine, make_shape):
    tiny = make_engine(make_shape(num_blocks=20))
    ended: list[str] = []

    def submit(name: str, params: SamplingParams) -> Request:
        watch = OutputWatch(lambda: None, lambda: None, on_finish=lambda: ended.append(name))
        return tiny.submit([5, 6, 7], params, watch=watch)

    submit("three", replace(GREEDY, n=3))
    submit("short", replace(GREEDY, max_tokens=1))
    running, waiting = (submit(name, GREEDY) for name in ("running", "waiting"))
    tiny.engine.step()
    for request in (running, waiting, running):
        tiny.engine.cancel(request)
    assert ended == ["short", "running", "waiting"]
    tiny.run()

    assert ended == ["short", "running", "waiting", "three", "three", "three"]
