"""The life of one request, asserted at every hand-over: the newcomer's guide that runs.

Read the tests in their order; docs/architecture.md tells the same story in words. The request is
a prompt of 100 tokens and two new ones. It comes to an engine in which two others already run and
a third has just ended, so it is given block 10, which that one left, and block 15.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from noria.bucketing import Bucket, DecodeBucket, PrefillBucket
from noria.runtime import LLM, RequestOutput, SamplingParams
from noria.runtime.block_table import BlockTable
from noria.runtime.config import parse_config
from noria.runtime.engine import Engine
from noria.runtime.graphs import CompiledGraph
from noria.runtime.kv_cache import KVCache
from noria.runtime.model_runner import ModelRunner
from noria.runtime.request import FinishReason, Request, RequestStatus
from noria.runtime.scheduler_output import Phase, SchedulerOutput

SETTINGS: dict[str, Any] = {
    "model": {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
    },
    "backend": "reference",
    "dtype": "float64",
    "num_threads": 1,
    "max_model_len": 1024,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 1024,
    "block_size": 64,
    "num_blocks": 40,
    "num_batched_tokens_buckets": [128, 1024],
    "num_seqs_buckets": [1, 4],
}
TEXT = (
    "A noria lifts water with a wheel of buckets. "
    "Each has one size, and the river keeps it turning, too."
)
PARAMS = SamplingParams(temperature=0, max_tokens=2)
SUBMITTED, AFTER_PREFILL, AFTER_DECODE = range(3)
"""Moments of the request."""
PREFILL, DECODE, SUCCESSOR = range(3)
"""Steps; in the last one the same prompt comes again."""
P = 4
"""Requests that a prefill step has rows for: min(8, max_num_seqs)."""


@dataclass(frozen=True)
class Step:
    """What the model runner was handed, and what it made of it before sampling."""

    scheduled: SchedulerOutput
    bucket: Bucket
    arrays: dict[str, npt.NDArray[np.int32]]
    logits_RV: Tensor
    written_slots: tuple[int, ...]


@dataclass(frozen=True)
class Snapshot:
    """A request at one moment."""

    status: RequestStatus
    num_computed_tokens: int
    output_token_ids: tuple[int, ...]


@dataclass
class Walk:
    """Everything that was seen on the way."""

    request: Request
    moments: list[Snapshot] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    num_compilations: list[int] = field(default_factory=list)
    output: RequestOutput | None = None

    def note(self) -> None:
        """Remember how the request stands."""
        request = self.request
        tokens = tuple(request.output_token_ids)
        self.moments.append(Snapshot(request.status, request.num_computed_tokens, tokens))


@pytest.fixture(scope="module")
def walk() -> Iterator[Walk]:
    """Run the request, and note every hand-over."""
    num_threads = torch.get_num_threads()
    llm = LLM(parse_config(SETTINGS))
    engine, runner = llm.loaded.engine, llm.loaded.runner
    warm = llm.loaded.graphs.num_compilations
    run_earlier_traffic(engine)

    walk = Walk(engine.submit(list(TEXT.encode()), PARAMS)[0])
    walk.note()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_graph", recorder(runner, llm.loaded.cache, walk))
        for _ in range(2):
            engine.step()
            engine.check_invariants()
            walk.note()
        (walk.output,) = llm.generate(TEXT, PARAMS)
    walk.num_compilations += [warm, llm.loaded.graphs.num_compilations]
    yield walk
    torch.set_num_threads(num_threads)


def run_earlier_traffic(engine: Engine) -> None:
    """Leave blocks 1 to 9 and 11 to 14 in use, and 10 at the head of the free list."""
    greedy = SamplingParams(temperature=0, max_tokens=10)
    (long,) = engine.submit([1] * 560, greedy)
    (gone,) = engine.submit([2] * 60, replace(greedy, max_tokens=1))
    (other,) = engine.submit([3] * 240, greedy)
    engine.step()
    assert [r.is_finished for r in (long, gone, other)] == [False, True, False]


def recorder(
    runner: ModelRunner, cache: KVCache, walk: Walk
) -> Callable[[CompiledGraph, SchedulerOutput], None]:
    """Return a run_graph that copies what each step leaves in its buffers, which are reused."""
    run_graph = runner.run_graph

    def record(graph: CompiledGraph, scheduled: SchedulerOutput) -> None:
        before = contents(cache)
        run_graph(graph, scheduled)
        written = (contents(cache) != before).any(dim=1).nonzero().flatten()
        arrays = {name: array.copy() for name, array in graph.arrays.items()}
        logits = graph.logits_RV.clone()
        walk.steps.append(Step(scheduled, graph.bucket, arrays, logits, tuple(map(int, written))))

    return record


def contents(cache: KVCache) -> Tensor:
    """Return a copy of all keys and values of all layers, a row for each slot."""
    return torch.cat(
        [part.flatten(0, 1).flatten(1) for part in (*cache.keys, *cache.values)], dim=1
    )


def test_01_submit_turns_a_prompt_into_a_waiting_request(walk: Walk) -> None:
    assert walk.request.prompt_token_ids == tuple(TEXT.encode())
    assert len(walk.request.prompt_token_ids) == 100
    assert walk.request.max_total_tokens == 102
    assert walk.moments[SUBMITTED] == Snapshot(RequestStatus.WAITING, 0, ())


def test_02_the_scheduler_admits_it_and_gives_it_blocks(walk: Walk) -> None:
    scheduled = walk.steps[PREFILL].scheduled
    (ours,) = scheduled.requests

    assert scheduled.phase is Phase.PREFILL
    assert ours.request_id == walk.request.request_id
    assert tuple(ours.token_ids) == walk.request.prompt_token_ids
    assert (ours.num_computed_tokens, ours.num_context_tokens) == (0, 100)
    assert ours.block_tables == (BlockTable(0, (10, 15)),)
    assert scheduled.num_scheduled_tokens == 100


def test_03_the_runner_picks_the_smallest_bucket_that_holds_it(walk: Walk) -> None:
    assert walk.steps[PREFILL].bucket == PrefillBucket(num_tokens=128, context_len=1024)


def test_04_tokens_and_positions_fill_100_of_128_rows(walk: Walk) -> None:
    arrays = walk.steps[PREFILL].arrays

    assert arrays["input_ids"].tolist() == [*TEXT.encode(), *[0] * 28]
    assert arrays["positions"].tolist() == [*range(100), *[0] * 28]
    assert arrays["tile_request"].tolist() == [*[0] * 100, *[-1] * 28]


def test_05_slots_lead_into_blocks_10_and_15_and_28_are_skipped(walk: Walk) -> None:
    slots = walk.steps[PREFILL].arrays["slot_mapping_0"].tolist()

    assert slots[:64] == list(range(640, 704)), "block 10 holds slots 640 to 703"
    assert slots[64:100] == list(range(960, 996)), "block 15 begins with slot 960"
    assert slots[100:] == [-1] * 28


def test_06_the_block_table_names_two_blocks_and_skips_the_rest(walk: Walk) -> None:
    table = walk.steps[PREFILL].arrays["block_table_0"]

    assert table.shape == (P, 1024 // 64)
    assert table[0].tolist() == [10, 15, *[-1] * 14]
    assert (table[1:] == -1).all(), "rows without a request"


def test_07_lengths_say_where_a_request_begins_and_ends(walk: Walk) -> None:
    arrays = walk.steps[PREFILL].arrays

    assert arrays["query_start_loc"].tolist() == [0, 100, 100, 100, 100]
    assert arrays["query_lens"].tolist() == [100, 0, 0, 0]
    assert arrays["context_lens"].tolist() == [0, 0, 0, 0]
    assert arrays["logits_positions"].tolist() == [99, 99, 99, 99]


def test_08_the_graph_writes_100_slots_and_no_other(walk: Walk) -> None:
    assert walk.steps[PREFILL].written_slots == (*range(640, 704), *range(960, 996))


def test_09_the_graph_leaves_a_row_of_logits_for_each_request(walk: Walk) -> None:
    logits = walk.steps[PREFILL].logits_RV

    assert tuple(logits.shape) == (P, 256)
    assert walk.moments[AFTER_PREFILL].output_token_ids == (int(logits[0].argmax()),)


def test_10_the_engine_appends_the_token_and_counts_real_tokens_only(walk: Walk) -> None:
    moment = walk.moments[AFTER_PREFILL]

    assert moment.status is RequestStatus.RUNNING
    assert len(moment.output_token_ids) == 1
    assert moment.num_computed_tokens == 100, "not 128"


def test_11_a_decode_step_runs_the_last_token_of_everyone(walk: Walk) -> None:
    scheduled = walk.steps[DECODE].scheduled
    ours = scheduled.requests[2]

    assert scheduled.phase is Phase.DECODE
    assert ours.request_id == walk.request.request_id
    assert tuple(ours.token_ids) == walk.moments[AFTER_PREFILL].output_token_ids
    assert ours.num_computed_tokens == 100
    assert ours.block_tables == (BlockTable(0, (10, 15)),), "28 slots of block 15 are still free"
    assert [len(request.token_ids) for request in scheduled.requests] == [1, 1, 1]


def test_12_three_requests_run_in_the_bucket_of_four(walk: Walk) -> None:
    arrays = walk.steps[DECODE].arrays

    assert walk.steps[DECODE].bucket == DecodeBucket(num_seqs=4, context_len=1024)
    assert arrays["positions"].tolist() == [560, 240, 100, 0]
    assert arrays["context_lens"].tolist() == [560, 240, 100, 0]
    assert arrays["query_lens"].tolist() == [1, 1, 1, 0]
    assert arrays["slot_mapping_0"].tolist()[2:] == [15 * 64 + 36, -1]
    assert arrays["block_table_0"][2].tolist() == [10, 15, *[-1] * 14]
    assert (arrays["block_table_0"][3] == -1).all()
    assert len(walk.steps[DECODE].written_slots) == 3
    assert walk.steps[DECODE].written_slots[-1] == 996


def test_13_row_2_of_the_logits_gives_its_second_token(walk: Walk) -> None:
    logits = walk.steps[DECODE].logits_RV

    assert tuple(logits.shape) == (4, 256)
    assert walk.moments[AFTER_DECODE].output_token_ids[1] == int(logits[2].argmax())


def test_14_the_last_token_ends_it(walk: Walk) -> None:
    moment = walk.moments[AFTER_DECODE]

    assert moment.status is RequestStatus.FINISHED
    assert walk.request.finish_reason is FinishReason.LENGTH
    assert moment.num_computed_tokens == 101, "the last token needs no place in the cache"


def test_15_its_blocks_are_free_again_and_go_to_the_next_request(walk: Walk) -> None:
    (successor,) = walk.steps[SUCCESSOR].scheduled.requests

    assert successor.request_id != walk.request.request_id
    assert successor.block_tables == (BlockTable(0, (15, 10)),), (
        "of a freed table the tail is reused first"
    )


def test_16_the_caller_gets_text_tokens_and_the_reason(walk: Walk) -> None:
    output = walk.output

    assert output is not None
    assert output.prompt == TEXT
    assert output.prompt_token_ids == walk.request.prompt_token_ids
    assert output.token_ids == walk.moments[AFTER_DECODE].output_token_ids
    assert output.text == bytes(output.token_ids).decode(errors="replace")
    assert (output.finish_reason, output.error) == ("length", None)


def test_17_nothing_was_compiled_after_warm_up(walk: Walk) -> None:
    before, after = walk.num_compilations

    assert before == after == 9, "4 model graphs, 2 samplers each for 1 and 4 rows, block copies"
