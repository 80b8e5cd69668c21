"""What padding and unused memory hold never reaches a result, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.block_table import BlockTable
from noria.runtime.model_inputs import fill_padding, fill_step
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler_output import Phase, ScheduledRequest, SchedulerOutput

TARGETS = {
    "reference-fp64": (ReferenceKernels, torch.float64),
    "cpu-fp32": (CpuKernels, torch.float32),
    "cpu-bf16": (CpuKernels, torch.bfloat16),
}
POISONS = {"nan": float("nan"), "huge": 1e30, "minus-inf": float("-inf")}
PROMPTS = [[1 + i, 2 * i + 5, 7] + [i] * (3 * i) for i in range(7)]
PARAMS = SamplingParams(temperature=0, max_tokens=7)


@pytest.fixture(scope="module", params=TARGETS.values(), ids=TARGETS)
def target(request):
    kernels, dtype = request.param
    return kernels(), dtype


def live_slots(tiny) -> list[int]:
    """Slots whose content running requests have computed."""
    size, slots = tiny.shape.block_size, []
    for request in tiny.scheduler.running:
        (table,) = tiny.kv_cache.block_tables(request.request_id)
        slots += [
            table.block_ids[position // size] * size + position % size
            for position in range(request.num_computed_tokens)
        ]
    return slots


def poison(tiny, value: float, *, null_block: bool = True) -> None:
    """Overwrite every slot that holds no computed token: free, unused, tail and null block."""
    dead = torch.ones(tiny.shape.num_blocks * tiny.shape.block_size, dtype=torch.bool)
    dead[live_slots(tiny)] = False
    if not null_block:
        dead[: tiny.shape.block_size] = False
    for cache in (*tiny.cache.keys, *tiny.cache.values):
        cache.flatten(0, 1)[dead] = value


def vary_padding(graph, rng) -> None:
    """Give padded rows other tokens and positions; what marks them as padding stays."""
    padded = graph.arrays["slot_mapping_0"] == -1
    graph.arrays["input_ids"][padded] = rng.integers(0, 61, padded.sum())
    graph.arrays["positions"][padded] = rng.choice([0, 1, 63, 10**6, -5], padded.sum())


def record_logits(tiny, before_run=lambda graph: None):
    """Run all prompts; return their tokens and the logits of real rows of every step."""
    recorded = []

    def run_graph(graph, output):
        fill_step(graph.arrays, output, graph.spec, graph_layout)
        before_run(graph)
        graph.run()
        rows = len(output.requests) * graph.query_len
        recorded.append(graph.logits_RV[:rows].clone())

    graph_layout = tiny.graphs.layout
    tiny.runner.run_graph = run_graph
    return tiny.generate(PROMPTS, PARAMS), recorded


@pytest.mark.parametrize("value", POISONS.values(), ids=POISONS)
def test_c03_poison_in_unused_memory_changes_no_bit(make_engine, target, value):
    kernels, dtype = target
    rng = np.random.default_rng(0)
    tokens, logits = record_logits(make_engine(kernels=kernels, dtype=dtype))
    tiny = make_engine(kernels=kernels, dtype=dtype)

    def disturb(graph):
        poison(tiny, value)
        vary_padding(graph, rng)

    poisoned_tokens, poisoned_logits = record_logits(tiny, disturb)

    assert poisoned_tokens == tokens
    assert len(logits) == len(poisoned_logits) > 7
    assert all(torch.equal(a, b) for a, b in zip(logits, poisoned_logits, strict=True))
    assert all(one.isfinite().all() for one in poisoned_logits)


def test_poison_in_live_memory_is_noticed(make_engine, target):
    kernels, dtype = target
    tiny = make_engine(kernels=kernels, dtype=dtype)

    def disturb(graph):
        for slot in live_slots(tiny)[:1]:
            tiny.cache.values[0].flatten(0, 1)[slot] = float("nan")

    _, logits = record_logits(tiny, disturb)

    assert not all(one.isfinite().all() for one in logits)


def test_c01_padded_rows_never_write_the_last_slot_or_the_null_block(make_engine, target):
    kernels, dtype = target
    tiny = make_engine(kernels=kernels, dtype=dtype)
    for cache in (*tiny.cache.keys, *tiny.cache.values):
        cache[-1, -1] = 123.0

    tiny.generate(PROMPTS, PARAMS)

    for cache in (*tiny.cache.keys, *tiny.cache.values):
        assert (cache[-1, -1] == 123.0).all()
        assert (cache[0] == 0).all()


def test_a_live_last_slot_keeps_its_owner_bits_while_others_pad(make_engine, make_shape, target):
    kernels, dtype = target
    tiny = make_engine(make_shape(num_blocks=9), kernels=kernels, dtype=dtype)
    tiny.scheduler._num_spare_blocks = 0
    for token_id in (5, 6):
        tiny.submit([token_id] * 16, SamplingParams(temperature=0, max_tokens=1))
    output = tiny.scheduler.schedule()
    tiny.runner.execute(output)
    tiny.scheduler.commit(output)
    assert 35 in live_slots(tiny)
    before = [c[-1, -1].clone() for c in (*tiny.cache.keys, *tiny.cache.values)]
    graph = tiny.graphs.models[tiny.plan.decode[-1]]

    for array in graph.arrays.values():
        array.fill(0)
    graph.arrays["slot_mapping_0"].fill(-1)
    graph.arrays["block_table_0"].fill(-1)
    graph.run()

    after = [c[-1, -1] for c in (*tiny.cache.keys, *tiny.cache.values)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_the_null_block_is_unchanged_after_many_steps(make_engine, target):
    kernels, dtype = target
    tiny = make_engine(kernels=kernels, dtype=dtype)
    steps = 0
    while steps < (1000 if kernels.name == "cpu" else 200):
        for length in (3, 9, 1):
            tiny.submit([length] * length, SamplingParams(temperature=0, max_tokens=50))
        while tiny.engine.has_unfinished:
            tiny.engine.step()
            steps += 1

    assert all((cache[0] == 0).all() for cache in (*tiny.cache.keys, *tiny.cache.values))


@pytest.mark.parametrize("num_active", [1, 2])
def test_c04_dummy_rows_are_finite_and_real_rows_do_not_see_them(
    make_engine, make_shape, target, num_active
):
    kernels, dtype = target
    logits = {}
    for seqs in ((1, 2, 8), (8,)):
        tiny = make_engine(make_shape(seqs=seqs), kernels=kernels, dtype=dtype)
        for i in range(num_active):
            tiny.submit([i + 1, 5, 9], SamplingParams(temperature=0, max_tokens=3))
        tiny.engine.step()
        poison(tiny, float("nan"))
        tiny.engine.step()
        graph = tiny.graphs.models[tiny.plan.pick_decode(num_active, 4)]
        assert graph.logits_RV.isfinite().all()
        logits[seqs] = graph.logits_RV[:num_active].clone()

    alone, among_dummies = logits.values()
    bound = 0 if kernels.name == "cpu" else 1e-9
    assert (alone - among_dummies).abs().max() <= bound


def test_c04_a_graph_without_any_real_row_is_finite(make_engine, target):
    kernels, dtype = target
    tiny = make_engine(kernels=kernels, dtype=dtype)
    poison(tiny, float("nan"))

    for graph in tiny.graphs.models.values():
        fill_padding(graph.arrays, graph.spec)
        graph.run()
        assert graph.logits_RV.isfinite().all()


def test_c09_the_first_token_does_not_depend_on_the_bucket(make_engine, make_shape, target):
    kernels, dtype = target
    logits = []
    for size in (8, 16, 32):
        for pad_id in (0, 7, 60):
            tiny = make_engine(make_shape(tokens=(size, 64)), kernels=kernels, dtype=dtype)
            graph = tiny.graphs.models[tiny.plan.prefill[0]]
            assert graph.bucket.num_tokens == size
            output = SchedulerOutput(Phase.PREFILL, (scheduled([1, 2, 3, 4, 5]),))
            fill_step(graph.arrays, output, graph.spec, tiny.graphs.layout)
            graph.arrays["input_ids"][5:] = pad_id
            graph.run()
            logits.append(graph.logits_RV[0].clone())

    bound = 0 if kernels.name == "cpu" else 1e-9
    assert all((one - logits[0]).abs().max() <= bound for one in logits)
    assert len({int(one.argmax()) for one in logits}) == 1


def scheduled(token_ids):
    return ScheduledRequest("r", token_ids, 0, (BlockTable(0, tuple(range(1, 9))),))


def test_c14_what_a_step_returned_does_not_change_with_later_steps(make_engine, target):
    kernels, dtype = target
    tiny = make_engine(kernels=kernels, dtype=dtype)
    inner, kept = tiny.runner.execute, []

    def execute(output):
        results = inner(output)
        kept.append((results, [result.token.token_id for result in results]))
        return results

    tiny.runner.execute = execute
    tiny.generate(PROMPTS, PARAMS)

    assert len({tuple(copy) for _, copy in kept}) > 3
    assert all([one.token.token_id for one in results] == copy for results, copy in kept)
