from __future__ import annotations

import itertools

import torch

from noria.bucketing import FillPolicy
from noria.kernels.contract import KVGroup
from noria.runtime.block_table import BlockCopy
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.request import FinishReason, Request, RequestStatus
from noria.runtime.sampler import SampledToken
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.sampling_state import SamplingState
from noria.runtime.scheduler import Scheduler
from noria.runtime.scheduler_output import Phase

NUMBERS = itertools.count()


def scheduler(num_blocks=64, max_num_tokens=32, max_num_prefill_seqs=4, max_num_seqs=4):
    groups = [KVGroup((0,), num_blocks, 4, 1, 8, 8, torch.float32)]
    manager = KVCacheManager(groups, max_query_len=max_num_tokens)
    fill = FillPolicy(max_num_tokens=max_num_tokens, max_num_seqs=max_num_prefill_seqs)
    score = FillPolicy(max_num_tokens=8, max_num_seqs=max_num_prefill_seqs)
    policies = {Phase.PREFILL: fill, Phase.SCORE: score}
    return Scheduler(manager, policies, max_num_seqs=max_num_seqs)


def samples(name: str, length: int, max_tokens: int = 4, priority: int = 0, **settings: object):
    params = SamplingParams(**settings)
    prompt, key = (1,) * length, next(NUMBERS)
    state = SamplingState(
        params, seed=0, prompt_token_ids=prompt, end_token_ids=frozenset(), vocab_size=61
    )
    return [
        Request(
            request_id=name if params.n == 1 else f"{name}{sample}",
            prompt_token_ids=prompt,
            params=params,
            sampling_state=state,
            end_token_ids=frozenset(),
            max_total_tokens=length + max_tokens,
            sample=sample,
            prompt_key=key,
            order=(priority, key if sample == 0 else next(NUMBERS)),
        )
        for sample in range(params.n)
    ]


def request(name: str, length: int, max_tokens: int = 4, priority: int = 0, **settings: object):
    (one,) = samples(name, length, max_tokens, priority, **settings)
    return one


def add(queue, *requests) -> None:
    for one in requests:
        queue.add([one])


def step(queue, requests):
    """Run the next step: whoever came to its last token gets another, as from the engine."""
    output = queue.schedule()
    queue.commit(output)
    by_id = {r.request_id: r for r in requests}
    for scheduled in output.requests:
        if scheduled.sampling is not None:
            by_id[scheduled.request_id].append(SampledToken(7, None))
            if by_id[scheduled.request_id].is_finished:
                queue.remove(by_id[scheduled.request_id])
    return output


def names(output) -> list[str]:
    return [scheduled.request_id for scheduled in output.requests]


def lengths(output) -> list[int]:
    return [len(scheduled.token_ids) for scheduled in output.requests]


def test_nothing_to_do_is_no_step():
    assert scheduler().schedule() is None


def test_prompts_fill_the_step_first_come_first_served_and_the_last_is_cut():
    queue, requests = scheduler(), [request("a", 20), request("b", 20), request("c", 5)]
    add(queue, *requests)

    first, second = step(queue, requests), step(queue, requests)

    assert (first.phase, names(first), lengths(first)) == (Phase.PREFILL, ["a", "b"], [20, 12])
    assert [one.sampling is None for one in first.requests] == [False, True]
    assert (second.phase, names(second), lengths(second)) == (Phase.PREFILL, ["b", "c"], [8, 5])
    assert [one.num_computed_tokens for one in second.requests] == [12, 0]


def test_prefill_goes_first_and_never_mixes_with_decode():
    queue, requests = scheduler(), [request("a", 5), request("b", 5)]
    add(queue, requests[0])
    step(queue, requests)
    add(queue, requests[1])

    prefill, decode = step(queue, requests), step(queue, requests)

    assert (prefill.phase, names(prefill)) == (Phase.PREFILL, ["b"])
    assert (decode.phase, names(decode)) == (Phase.DECODE, ["a", "b"])
    assert [list(one.token_ids) for one in decode.requests] == [[7], [7]]
    assert [one.num_computed_tokens for one in decode.requests] == [5, 5]


def test_a_prompt_of_one_token_needs_no_prefill():
    queue, requests = scheduler(), [request("a", 1)]
    add(queue, *requests)

    output = queue.schedule()

    assert (output.phase, lengths(output)) == (Phase.DECODE, [1])


def test_no_more_requests_run_than_max_num_seqs():
    queue, requests = scheduler(max_num_seqs=3), [request(str(i), 2) for i in range(5)]
    add(queue, *requests)

    step(queue, requests)

    assert [one.request_id for one in queue.running] == ["0", "1", "2"]
    assert queue.schedule().phase is Phase.DECODE


def test_a_request_is_admitted_by_what_it_has_not_by_what_it_may_become():
    queue = scheduler(num_blocks=9)
    requests = [request("a", 9, max_tokens=20), request("b", 9, max_tokens=20)]
    add(queue, *requests)

    assert names(step(queue, requests)) == ["a", "b"]


def test_an_admission_leaves_a_block_for_those_that_run():
    queue = scheduler(num_blocks=6)
    requests = [request("a", 8), request("b", 9)]
    add(queue, *requests)

    assert names(step(queue, requests)) == ["a"]
    assert requests[1].status is RequestStatus.WAITING


def test_f03_the_last_request_gives_way_and_resumes_when_there_is_room():
    queue = scheduler(num_blocks=6)
    requests = [request("a", 6, max_tokens=10), request("b", 6, max_tokens=10)]
    add(queue, *requests)
    steps = []

    while not all(one.is_finished for one in requests):
        steps.append(step(queue, requests))

    assert [one.num_preemptions for one in requests] == [0, 1]
    resumed = next(i for i, one in enumerate(steps) if i and one.phase is Phase.PREFILL)
    assert names(steps[resumed]) == ["b"]
    (row,) = steps[resumed].requests
    assert list(row.token_ids) == [1] * 6 + [7] * (len(row.token_ids) - 6)
    assert all("b" not in names(one) for one in steps[resumed - 3 : resumed])
    assert all(len(one.output_token_ids) == 10 for one in requests)


def test_of_two_priorities_the_smaller_number_runs_first_and_is_preempted_last():
    queue = scheduler(num_blocks=6, max_num_seqs=2)
    late = request("late", 6, max_tokens=10, priority=5)
    urgent = request("urgent", 6, max_tokens=10, priority=-1)
    add(queue, late)
    step(queue, [late])
    add(queue, urgent)

    while not urgent.is_finished:
        step(queue, [late, urgent])

    assert (late.num_preemptions, urgent.num_preemptions) == (1, 0)
    assert not late.is_finished


def test_undo_gives_everything_back():
    queue, requests = scheduler(), [request("a", 20), request("b", 20)]
    add(queue, *requests)
    step(queue, requests)

    queue.undo(queue.schedule())

    assert {one.num_computed_tokens for one in requests} == {0, 20}
    again = step(queue, requests)
    assert (names(again), lengths(again)) == (["b"], [20])


def test_scheduled_tokens_are_real_tokens():
    queue, requests = scheduler(), [request("a", 5), request("b", 6)]
    add(queue, *requests)

    output = queue.schedule()

    assert output.num_scheduled_tokens == 11
    assert [len(one.block_tables[0].block_ids) for one in output.requests] == [2, 2]


def test_a_waiting_request_can_be_removed():
    queue, requests = scheduler(), [request("a", 5), request("b", 6)]
    add(queue, *requests)

    queue.remove(requests[0])

    assert names(queue.schedule()) == ["b"]


def test_samples_start_from_the_blocks_of_the_first_one():
    queue, requests = scheduler(), samples("a", 6, n=3)
    queue.add(requests)

    prefill, decode = step(queue, requests), step(queue, requests)

    assert names(prefill) == ["a0"]
    assert (decode.phase, names(decode)) == (Phase.DECODE, ["a0", "a1", "a2"])
    assert [list(one.token_ids) for one in decode.requests] == [[7], [1], [1]]
    assert [one.num_computed_tokens for one in decode.requests] == [6, 5, 5]
    assert decode.block_copies == (BlockCopy(0, 2, 3), BlockCopy(0, 2, 4))
    assert [one.block_tables[0].block_ids for one in decode.requests] == [(1, 3), (1, 4), (1, 2)]


def test_samples_share_even_with_a_first_one_that_ends_at_once():
    queue, requests = scheduler(), samples("a", 6, max_tokens=1, n=3)
    queue.add(requests)

    step(queue, requests)
    output = step(queue, requests)

    assert requests[0].is_finished
    assert (output.phase, names(output)) == (Phase.DECODE, ["a1", "a2"])


def test_samples_beyond_max_num_seqs_share_later_or_compute_the_prompt_again():
    queue, requests = scheduler(max_num_seqs=2), samples("a", 6, max_tokens=2, n=4)
    queue.add(requests)
    phases = []

    while not all(one.is_finished for one in requests):
        phases.append(step(queue, requests).phase)

    assert all(one.output_token_ids == [7, 7] for one in requests)
    assert phases.count(Phase.PREFILL) == 1


def test_samples_do_not_overtake_a_request_of_a_higher_priority():
    queue, (first, second) = scheduler(num_blocks=9), samples("p", 8, n=2, priority=1)
    urgent = request("urgent", 28, priority=0)
    queue.add([first, second])
    queue.schedule()
    add(queue, urgent)
    requests = [first, second, urgent]

    step(queue, requests)
    running = list(queue.running)
    order = [names(step(queue, requests)) for _ in range(11)]

    assert running == [first], "there is room for the second, but not for the urgent one"
    assert order == [["p0"]] * 3 + [["urgent"]] * 4 + [["p1"]] * 4
    assert queue.schedule() is None


def test_samples_go_on_alone_when_the_first_one_is_cancelled():
    queue, requests = scheduler(), samples("a", 6, n=3)
    queue.add(requests)
    requests[0].finish(FinishReason.CANCELLED)
    queue.remove(requests[0])

    first = step(queue, requests)

    assert names(first) == ["a1", "a2"]


def test_a_sample_that_waits_for_the_first_one_can_be_removed():
    queue, requests = scheduler(), samples("a", 6, n=3)
    queue.add(requests)
    requests[1].finish(FinishReason.CANCELLED)
    queue.remove(requests[1])

    step(queue, requests)

    assert names(step(queue, requests)) == ["a0", "a2"]


def test_logprobs_of_a_prompt_run_in_steps_of_their_own_up_to_its_last_token():
    queue = scheduler()
    requests = [request("a", 12, prompt_logprobs=0), request("b", 6)]
    add(queue, *requests)

    first = step(queue, requests)
    requests[0].add_prompt_logprobs(0, [None] * 8)
    second = step(queue, requests)
    requests[0].add_prompt_logprobs(8, [None] * 3)
    third, fourth = step(queue, requests), step(queue, requests)

    assert [one.phase.value for one in (first, second)] == ["score", "score"]
    assert [lengths(first), lengths(second)] == [[8], [3]]
    assert [list(one.requests[0].next_token_ids) for one in (first, second)] == [[1] * 8, [1] * 3]
    assert (third.phase, names(third)) == (Phase.PREFILL, ["b"])
    assert (fourth.phase, names(fourth)) == (Phase.DECODE, ["a", "b"])
