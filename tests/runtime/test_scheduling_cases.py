"""Scheduling in a whole engine: full caches, preemption, chunks, priorities, samples, cancels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noria.runtime.errors import RequestError
from noria.runtime.request import FinishReason, RequestStatus
from noria.runtime.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=7)
SEEDED = SamplingParams(temperature=1.2, seed=11, max_tokens=7)


def record(tiny):
    """Return the list that will hold every step that the engine runs."""
    inner, steps = tiny.runner.execute, []

    def execute(output):
        steps.append(output)
        return inner(output)

    tiny.runner.execute = execute
    return steps


def num_used(tiny) -> int:
    """Return how many blocks have an owner."""
    (num_free,) = tiny.kv_cache.num_free_blocks
    return tiny.shape.num_blocks - 1 - num_free


def run_within(tiny, num_steps: int) -> None:
    """Step until all requests have ended, which must not take more steps than this."""
    for _ in range(num_steps):
        tiny.engine.step()
        tiny.engine.check_invariants()
    assert not tiny.engine.has_unfinished
    assert num_used(tiny) == 0


def test_f01_what_can_never_fit_is_refused_and_the_others_run(make_engine, make_shape, dense):
    """4 usable blocks of 4: a prompt of 20; a prompt of 10 that may grow to 40."""
    tiny = make_engine(make_shape(num_blocks=5))
    before = tiny.submit([1] * 9, GREEDY)

    for length, max_tokens in [(20, 1), (10, 30)]:
        with pytest.raises(RequestError, match=r"num_blocks 5 gives 4"):
            tiny.submit([2] * length, replace(GREEDY, max_tokens=max_tokens))
    behind = tiny.submit([3] * 15, replace(GREEDY, max_tokens=1))
    run_within(tiny, 20)

    assert before.output_token_ids == dense.generate([1] * 9, GREEDY, 7)
    assert behind.output_token_ids == dense.generate([3] * 15, GREEDY, 1)


def test_f03_one_missing_block_preempts_one_request_alone(make_engine, make_shape, dense):
    """Step 5 writes position 8 of all 8: each asks for its third block, and there are 7."""
    tiny = make_engine(make_shape(num_blocks=1 + 8 * 2 + 7, max_num_prefill_seqs=8))
    prompts = [[i + 1, 3 * i, 7, i, 2] for i in range(8)]
    params = [replace(SEEDED, seed=i) if i % 2 else GREEDY for i in range(8)]

    requests = [tiny.submit(p, one) for p, one in zip(prompts, params, strict=True)]
    for _ in range(4):
        tiny.engine.step()
    assert num_used(tiny) == 16
    assert all(request.num_preemptions == 0 for request in requests)
    tiny.engine.step()
    assert num_used(tiny) == 7 * 3
    run_within(tiny, 40)

    assert [request.num_preemptions for request in requests] == [0] * 7 + [1]
    for prompt, one, request in zip(prompts, params, requests, strict=True):
        assert request.output_token_ids == dense.generate(prompt, one, 7)


def test_f03_several_are_preempted_where_several_blocks_are_missing(make_engine, make_shape, dense):
    """The last ones first, again and again; the first in the order never."""
    tiny = make_engine(make_shape(num_blocks=1 + 10))
    params = [replace(SEEDED, seed=i, max_tokens=20) for i in range(6)]

    requests = [tiny.submit([i, 9, i], one) for i, one in enumerate(params)]
    run_within(tiny, 400)

    counts = [request.num_preemptions for request in requests]
    assert counts[0] == 0
    assert sum(count > 0 for count in counts) > 1
    for index, (one, request) in enumerate(zip(params, requests, strict=True)):
        assert request.output_token_ids == dense.generate([index, 9, index], one, 20)


@pytest.mark.parametrize("num_behind", [0, 3])
def test_f05_two_long_prompts_do_not_block_each_other(make_engine, make_shape, dense, num_behind):
    """10 blocks, two prompts of 7 blocks in chunks of 2 blocks, short prompts behind them."""
    shape = make_shape(num_blocks=1 + 10, tokens=(8,), max_num_batched_tokens=8)
    tiny = make_engine(shape)
    prompts = [[*range(28)], [*range(28, 56)], *([[5, i] for i in range(num_behind)])]

    requests = [tiny.submit(prompt, GREEDY) for prompt in prompts]
    for _ in range(3):
        tiny.engine.step()
        assert requests[1].status is RequestStatus.WAITING
    run_within(tiny, 40)

    assert [one.output_token_ids for one in requests] == [
        dense.generate(prompt, GREEDY, 7) for prompt in prompts
    ]


@pytest.mark.parametrize("lengths", [(7, 8, 9, 16, 17), (17, 16, 9, 8, 7), (17,), (9, 9, 9)])
def test_f06_chunks_write_every_position_once_and_only_the_last_one_draws(
    make_engine, make_shape, dense, lengths
):
    """A budget of 8 tokens; 17 leaves a last chunk of one token, padded to its bucket."""
    tiny = make_engine(make_shape(tokens=(8,), max_num_batched_tokens=8, seqs=(4, 8)))
    whole = make_engine(make_shape())
    steps = record(tiny)
    prompts = [[(length * 7 + i * i) % 61 for i in range(length)] for length in lengths]
    params = [replace(SEEDED, seed=i) if i % 2 else GREEDY for i in range(len(prompts))]

    requests = [tiny.submit(p, one) for p, one in zip(prompts, params, strict=True)]
    unchunked = [whole.submit(p, one) for p, one in zip(prompts, params, strict=True)]
    tiny.run()
    whole.run()

    assert all(step.num_scheduled_tokens <= 8 for step in steps)
    for prompt, one, request in zip(prompts, params, requests, strict=True):
        rows = [r for s in steps for r in s.requests if r.request_id == request.request_id]
        written = [at for r in rows for at in range(r.num_computed_tokens, r.num_context_tokens)]
        assert written == [*range(len(prompt) + 7 - 1)]
        known = [*prompt, *request.output_token_ids]
        assert [token for r in rows for token in r.token_ids] == known[:-1]
        drawn = [r.num_context_tokens for r in rows if r.sampling is not None]
        assert drawn == [*range(len(prompt), len(prompt) + 7)]
        assert request.output_token_ids == dense.generate(prompt, one, 7)
    assert [one.output_token_ids for one in requests] == [one.output_token_ids for one in unchunked]


def test_a_smaller_priority_number_goes_first_and_loses_its_blocks_last(
    make_engine, make_shape, dense
):
    tiny = make_engine(make_shape(num_blocks=1 + 8))
    params, priorities = replace(GREEDY, max_tokens=16), [5, 0, -3, 0, 9]
    prompts = [[i, 1, i, 2, i] for i in range(5)]

    requests = [
        tiny.submit(prompt, params, priority=priority)
        for prompt, priority in zip(prompts, priorities, strict=True)
    ]
    ended = []
    while tiny.engine.has_unfinished:
        ended += [one for one in tiny.engine.step() if one.is_finished]
        tiny.engine.check_invariants()

    assert [requests.index(one) for one in ended] == [2, 1, 3, 0, 4]
    assert requests[2].num_preemptions == 0
    assert sum(one.num_preemptions for one in requests) > 0
    assert [one.output_token_ids for one in requests] == [
        dense.generate(prompt, params, 16) for prompt in prompts
    ]


def test_a_request_is_cancelled_in_the_middle_of_its_chunks(make_engine, make_shape, dense):
    tiny = make_engine(make_shape(tokens=(8,), max_num_batched_tokens=8, num_blocks=1 + 16))
    kept, long = tiny.submit([1, 2], GREEDY), tiny.submit([4] * 50, GREEDY)
    tiny.engine.step()
    tiny.engine.step()
    assert 0 < long.num_computed_tokens < 50

    tiny.engine.cancel(long)
    tiny.engine.check_invariants()
    used, late = num_used(tiny), tiny.submit([6] * 50, GREEDY)
    run_within(tiny, 40)

    assert used == 1
    assert (long.finish_reason, long.output_token_ids) == (FinishReason.CANCELLED, [])
    assert kept.output_token_ids == dense.generate([1, 2], GREEDY, 7)
    assert late.output_token_ids == dense.generate([6] * 50, GREEDY, 7)


@pytest.mark.parametrize("num_steps", range(7))
@pytest.mark.parametrize("victims", [(0,), (1,), (0, 2), (3,), (0, 1, 2, 3)], ids=str)
def test_samples_are_cancelled_whether_they_wait_share_blocks_or_write_their_own(
    make_engine, make_shape, num_steps, victims
):
    """A prompt of 21 tokens takes three steps of 8; then the samples share 5 blocks of it."""
    shape = make_shape(tokens=(8,), max_num_batched_tokens=8, num_blocks=1 + 30)
    params, prompt = replace(SEEDED, n=4), [(i * i) % 61 for i in range(21)]
    undisturbed, tiny = make_engine(shape), make_engine(shape)
    expected = undisturbed.engine.submit(prompt, params)
    undisturbed.run()

    samples = tiny.engine.submit(prompt, params)
    for _ in range(num_steps):
        tiny.engine.step()
    for index in victims:
        tiny.engine.cancel(samples[index])
        tiny.engine.check_invariants()
    run_within(tiny, 60)

    for index, (sample, whole) in enumerate(zip(samples, expected, strict=True)):
        if index in victims:
            count = len(sample.output_token_ids)
            assert sample.finish_reason is FinishReason.CANCELLED
            assert sample.output_token_ids == whole.output_token_ids[:count]
        else:
            assert sample.output_token_ids == whole.output_token_ids


def test_a_preempted_request_is_cancelled_while_it_waits(make_engine, make_shape, dense):
    tiny = make_engine(make_shape(num_blocks=1 + 8))
    params = replace(GREEDY, max_tokens=20)
    requests = [tiny.submit([i, 9, i], params) for i in range(4)]
    while not requests[-1].num_preemptions:
        tiny.engine.step()
    victim = requests[-1]
    assert victim.status is RequestStatus.WAITING

    tiny.engine.cancel(victim)
    run_within(tiny, 200)

    assert (victim.status, victim.finish_reason) == (
        RequestStatus.FINISHED,
        FinishReason.CANCELLED,
    )
    for index, request in enumerate(requests):
        whole = dense.generate([index, 9, index], params, 20)
        assert request.output_token_ids == whole[: len(request.output_token_ids)]
        assert request is victim or len(request.output_token_ids) == 20


def test_samples_hold_the_blocks_of_their_prompt_once(make_engine, make_shape):
    """A prompt of 41 tokens: 10 blocks in common and one for each of 4, not 4 times 11."""
    tiny = make_engine(make_shape(seqs=(8,)))
    steps = record(tiny)

    samples = tiny.engine.submit([*range(41)], replace(SEEDED, n=4))
    tiny.engine.step()
    tiny.engine.step()

    assert num_used(tiny) == 10 + 4
    tables = [row.block_tables[0].block_ids for row in steps[1].requests]
    assert len(tables) == 4
    assert len({table[:10] for table in tables}) == 1
    assert len({table[10] for table in tables}) == 4
    tiny.engine.cancel(samples[0])
    assert num_used(tiny) == 10 + 3
    run_within(tiny, 20)


def test_samples_write_into_copies_of_a_block_that_the_prompt_fills_in_part(
    make_engine, make_shape, dense
):
    """A prompt of 42 tokens: the last of 11 blocks holds two tokens of it."""
    tiny = make_engine(make_shape(seqs=(8,)))
    steps, params = record(tiny), replace(SEEDED, n=4)

    samples = tiny.engine.submit([*range(42)], params)
    tiny.engine.step()
    tiny.engine.step()

    assert num_used(tiny) == 10 + 4
    last_of_prompt = steps[0].requests[0].block_tables[0].block_ids[10]
    assert [copy.source for copy in steps[1].block_copies] == [last_of_prompt] * 3
    run_within(tiny, 20)
    assert samples[0].output_token_ids == dense.generate([*range(42)], SEEDED, 7)
    assert len({tuple(one.output_token_ids) for one in samples}) == 4
