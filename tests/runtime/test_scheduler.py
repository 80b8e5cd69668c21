from __future__ import annotations

import torch

from noria.bucketing import WholePrompts
from noria.kernels.contract import KVGroup
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.request import FinishReason, Request, RequestStatus
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler import Scheduler
from noria.runtime.scheduler_output import Phase


def scheduler(num_blocks=64, max_num_tokens=32, max_num_prefill_seqs=4, max_num_seqs=4):
    manager = KVCacheManager([KVGroup((0,), num_blocks, 4, 1, 8, 8, torch.float32)])
    policy = WholePrompts(max_num_tokens=max_num_tokens, max_num_seqs=max_num_prefill_seqs)
    return Scheduler(manager, policy, max_num_seqs=max_num_seqs)


def request(name: str, length: int, max_tokens: int = 4) -> Request:
    total = length + max_tokens
    return Request(name, (1,) * length, SamplingParams(), 0, frozenset(), total)


def answer(output, requests) -> None:
    """Give every scheduled request a token, as the engine does."""
    by_id = {r.request_id: r for r in requests}
    for scheduled in output.requests:
        by_id[scheduled.request_id].num_computed_tokens = scheduled.num_context_tokens
        by_id[scheduled.request_id].append(7)


def names(output) -> list[str]:
    return [scheduled.request_id for scheduled in output.requests]


def test_nothing_to_do_is_no_step():
    assert scheduler().schedule() is None


def test_prompts_are_packed_first_come_first_served_and_nobody_overtakes():
    queue, requests = scheduler(), [request("a", 20), request("b", 20), request("c", 2)]
    for one in requests:
        queue.add(one)

    first = queue.schedule()
    answer(first, requests)
    second = queue.schedule()

    assert (first.phase, names(first)) == (Phase.PREFILL, ["a"])
    assert (second.phase, names(second)) == (Phase.PREFILL, ["b", "c"])


def test_prefill_goes_first_and_never_mixes_with_decode():
    queue, requests = scheduler(), [request("a", 5), request("b", 5)]
    queue.add(requests[0])
    answer(queue.schedule(), requests)
    queue.add(requests[1])

    prefill = queue.schedule()
    answer(prefill, requests)
    decode = queue.schedule()

    assert (prefill.phase, names(prefill)) == (Phase.PREFILL, ["b"])
    assert (decode.phase, names(decode)) == (Phase.DECODE, ["a", "b"])
    assert [list(one.token_ids) for one in decode.requests] == [[7], [7]]
    assert [one.num_computed_tokens for one in decode.requests] == [5, 5]


def test_no_more_requests_run_than_max_num_seqs():
    queue, requests = scheduler(max_num_seqs=3), [request(str(i), 2) for i in range(5)]
    for one in requests:
        queue.add(one)

    answer(queue.schedule(), requests)

    assert [one.request_id for one in queue.running] == ["0", "1", "2"]
    assert queue.schedule().phase is Phase.DECODE
    assert queue.num_unfinished == 5


def test_a_request_is_admitted_only_when_its_whole_need_is_free():
    queue = scheduler(num_blocks=6)
    first, second = request("a", 9, max_tokens=7), request("b", 1, max_tokens=4)
    queue.add(first)
    queue.add(second)

    admitted = queue.schedule()
    answer(admitted, [first])
    first.finish(FinishReason.STOP)
    queue.remove(first)

    assert names(admitted) == ["a"]
    assert second.status is RequestStatus.WAITING
    assert names(queue.schedule()) == ["b"]


def test_scheduled_tokens_are_real_tokens():
    queue, requests = scheduler(), [request("a", 5), request("b", 6)]
    for one in requests:
        queue.add(one)

    output = queue.schedule()

    assert output.num_scheduled_tokens == 11
    assert [len(one.block_tables[0]) for one in output.requests] == [2, 2]


def test_a_waiting_request_can_be_removed():
    queue, requests = scheduler(), [request("a", 5), request("b", 6)]
    for one in requests:
        queue.add(one)

    queue.remove(requests[0])

    assert names(queue.schedule()) == ["b"]
