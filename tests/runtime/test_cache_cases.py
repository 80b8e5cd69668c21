"""Cases of the KV cache that take a whole engine to show: D01, D03, D07, D08, D09."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from noria.bucketing import BucketLists, PlanLimits, PrefillBucket, plan_buckets
from noria.kernels.contract import num_blocks_for
from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime import model_inputs, warmup
from noria.runtime.block_table import BlockTable
from noria.runtime.errors import RequestError
from noria.runtime.graph_spec import GraphLayout, GroupLayout, graph_spec
from noria.runtime.graphs import CompiledGraphs
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.model_inputs import fill_step
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler_output import Phase, ScheduledRequest, SchedulerOutput

BLOCK_SIZE = 4


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


@pytest.mark.parametrize(
    ("num_tokens", "last_slot", "in_last_block"), [(8, 47, 4), (4, 43, 4), (5, 44, 1)]
)
def test_d01_the_last_token_of_a_full_block_has_its_last_slot(num_tokens, last_slot, in_last_block):
    """Blocks 10 and 11 of 4 tokens: 8 tokens end at slot 47, not at 43."""
    layout = GraphLayout((GroupLayout(BLOCK_SIZE),), 1, 1, 1)
    table = (10, 11)[: num_blocks_for(num_tokens, BLOCK_SIZE)]
    request = ScheduledRequest("r", range(num_tokens), 0, (BlockTable(0, table),))
    spec = graph_spec(PrefillBucket(8, 8), layout)
    arrays = {i.name: np.full(i.shape, -77, dtype=np.int32) for i in spec}

    fill_step(arrays, SchedulerOutput(Phase.PREFILL, (request,)), spec, layout)

    slots = arrays["slot_mapping_0"]
    assert slots[num_tokens - 1] == last_slot
    assert (slots // BLOCK_SIZE == table[-1]).sum() == in_last_block
    assert num_blocks_for(0, BLOCK_SIZE) == 0


def test_d03_every_position_is_written_once_and_the_cache_read_is_what_was_written(tiny, dense):
    """9 tokens, then 4 decode steps; slots that nobody wrote hold NaN."""
    prompt, context_lens, written, logits = list(range(1, 10)), [], [], []
    is_written = torch.zeros(tiny.shape.num_blocks * BLOCK_SIZE, dtype=torch.bool)

    def run_graph(graph, output):
        fill_step(graph.arrays, output, graph.spec, tiny.graphs.layout)
        for cache in (*tiny.cache.keys, *tiny.cache.values):
            cache.flatten(0, 1)[~is_written] = float("nan")
        slots = graph.arrays["slot_mapping_0"]
        is_written[torch.from_numpy(slots[slots >= 0]).long()] = True
        written.extend(graph.arrays["positions"][slots >= 0].tolist())
        context_lens.append(int(graph.arrays["context_lens"][0]))
        graph.run()
        logits.append(graph.logits_RV[0].clone())

    tiny.runner.run_graph = run_graph
    request = tiny.submit(prompt, greedy(5))
    tiny.run()

    assert context_lens == [0, 9, 10, 11, 12]
    assert written == list(range(13))
    tokens = prompt + request.output_token_ids
    for step, row in enumerate(logits):
        expected = dense.logits(tokens[: 9 + step])[-1]
        assert float((row - expected).abs().max()) < 1e-9


def check_needed_blocks(output) -> None:
    """Assert that each position to be written has an owned block, and no block is beyond need."""
    for scheduled in output.requests:
        (table,) = scheduled.block_tables
        last = scheduled.num_context_tokens - 1
        count = len(table.block_ids)
        assert count > last // BLOCK_SIZE, f"position {last} has no block"
        assert count == last // BLOCK_SIZE + 1, f"{count} blocks for position {last}"


def run_over_block_borders(tiny) -> int:
    """Run prompts around the block size over several borders; return the number of steps."""
    run_graph, phases = tiny.runner.run_graph, []

    def check_and_run(graph, output):
        check_needed_blocks(output)
        phases.append(output.phase)
        run_graph(graph, output)

    tiny.runner.run_graph = check_and_run
    for length in (BLOCK_SIZE - 1, BLOCK_SIZE, BLOCK_SIZE + 1):
        tiny.submit([1 + length] * length, greedy(2 * BLOCK_SIZE + 1))
    tiny.run()
    return len(phases)


def test_d07_a_block_comes_with_the_step_that_writes_its_first_token(tiny):
    assert run_over_block_borders(tiny) == 1 + 2 * BLOCK_SIZE


@pytest.mark.parametrize(
    ("shift", "problem"), [(-1, "has no block"), (1, "blocks for position")], ids=["late", "early"]
)
def test_d07_a_block_that_comes_late_or_early_is_found(tiny, monkeypatch, shift, problem):
    grow = KVCacheManager.grow

    def shifted(self, request_id, num_tokens):
        return grow(self, request_id, num_tokens + shift)

    monkeypatch.setattr(KVCacheManager, "grow", shifted)

    with pytest.raises(AssertionError, match=problem):
        run_over_block_borders(tiny)


class Failing(ReferenceKernels):
    """Graphs that fail now and then."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng

    def compile(self, graph, inputs, outputs):
        run = super().compile(graph, inputs, outputs)

        def sometimes() -> None:
            if self.rng.random() < 0.05:
                raise RuntimeError("device lost")
            run()

        return sometimes


def test_d08_all_blocks_are_free_after_any_traffic(make_engine, make_shape):
    """200 requests with shared beginnings; stops, cancels, refusals and steps that fail."""
    rng = random.Random(8)
    tiny = make_engine(make_shape(num_blocks=40), kernels=Failing(rng))
    (usable,) = tiny.kv_cache.num_free_blocks
    beginnings = [[rng.randrange(61) for _ in range(12)] for _ in range(3)]
    requests, seen = [], {"failed step": 0, "refused": 0}

    def step() -> None:
        try:
            tiny.engine.step()
        except RuntimeError:
            seen["failed step"] += 1
        tiny.engine.check_invariants()

    for number in range(200):
        prompt = [*rng.choice(beginnings)[: rng.randrange(1, 13)], number % 61]
        params = SamplingParams(
            temperature=rng.choice([0, 1.0]),
            max_tokens=rng.randrange(1, 12),
            seed=number,
            stop_token_ids=tuple(range(rng.randrange(20))),
        )
        try:
            requests.append(tiny.submit(prompt if number % 20 else [1] * 64, params))
        except RequestError:
            seen["refused"] += 1
        if requests and rng.random() < 0.1:
            tiny.engine.cancel(rng.choice(requests))
        for _ in range(rng.randrange(3)):
            step()
    while tiny.engine.has_unfinished:
        step()

    reasons = {request.finish_reason.name for request in requests}
    assert seen["failed step"] > 5
    assert seen["refused"] == 10
    assert reasons == {"STOP", "LENGTH", "CANCELLED"}
    assert tiny.kv_cache.num_free_blocks == (usable,) == (39,)


def make_wide_engine(make_engine, make_shape, kernels):
    """Return an engine whose decode graphs take 8 rows per request, two blocks' worth."""
    shape = make_shape(seqs=(2, 8), block_size=BLOCK_SIZE)
    tiny = make_engine(shape, kernels=kernels, dtype=torch.float32)
    limits = PlanLimits(
        max_num_batched_tokens=shape.max_num_batched_tokens,
        max_num_seqs=shape.max_num_seqs,
        max_model_len=shape.max_model_len,
        max_num_prefill_seqs=shape.max_num_prefill_seqs,
        block_size=BLOCK_SIZE,
        num_speculative_tokens=7,
    )
    plan = plan_buckets(limits, BucketLists(shape.tokens, shape.seqs))
    graphs = CompiledGraphs(
        tiny.model,
        kernels,
        tiny.cache,
        plan=plan,
        layout=tiny.graphs.layout,
        sampler_features=shape.sampler_features,
    )
    graphs.compile(lambda label, index, total: None)
    return replace(tiny, graphs=graphs)


def warm(tiny) -> bool:
    """Warm up; return whether the whole pool is still zero."""
    vocab_size = tiny.model.architecture.vocab_size
    buckets = tiny.graphs.models
    warmup.WarmUp(
        tiny.graphs, tiny.cache, buckets, vocab_size=vocab_size, dtype=torch.float32
    ).run()
    return all(bool((cache == 0).all()) for cache in (*tiny.cache.keys, *tiny.cache.values))


@pytest.mark.parametrize("kernels", [ReferenceKernels, CpuKernels])
def test_d09_warm_up_of_rows_wider_than_a_block_writes_nothing(make_engine, make_shape, kernels):
    tiny = make_wide_engine(make_engine, make_shape, kernels())

    assert max(graph.query_len for graph in tiny.graphs.models.values()) == 2 * BLOCK_SIZE
    assert warm(tiny)


def test_d09_dummy_slots_of_a_formula_are_found(make_engine, make_shape, monkeypatch):
    """request * block size + position, with position beyond the block."""
    fill_padding = model_inputs.fill_padding

    def with_dummy_slots(arrays, spec):
        fill_padding(arrays, spec)
        rows = np.arange(len(arrays["slot_mapping_0"]), dtype=np.int32)
        arrays["slot_mapping_0"][:] = rows // 8 * BLOCK_SIZE + rows % 8

    monkeypatch.setattr(model_inputs, "fill_padding", with_dummy_slots)

    assert not warm(make_wide_engine(make_engine, make_shape, ReferenceKernels()))
