"""The planner's simulation runs the very steps that the engine runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plans import any_plan
from tiny_engine import EngineShape, TinyEngine, build_engine

from noria.bucketing import PlanFile, packed_len
from noria.bucketing.planner.simulated_requests import ServiceLimits
from noria.bucketing.planner.simulation import Steps, simulate
from noria.bucketing.planner.step_times import StepTimes
from noria.bucketing.traces.trace import Trace
from noria.runtime.model_runner import ModelRunner
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler_output import Phase, SchedulerOutput

SHAPE = EngineShape(max_num_seqs=4, max_num_batched_tokens=16, tokens=(8, 16), seqs=(1, 4))
REQUESTS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 20)), min_size=1, max_size=12)


class OneSecond(StepTimes):
    """Every step takes a second."""

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        return 1.0

    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        return 1.0


def engine_steps(
    engine: TinyEngine, requests: list[tuple[int, int]]
) -> tuple[
    Counter[tuple[int, int, int, int]], Counter[tuple[int, int]], dict[tuple[int, int], float]
]:
    """Return the steps in which an engine runs these requests, as the simulation names them.

    The last are the tokens that a request of each decode shape has on average.
    """
    prefill: Counter[tuple[int, int, int, int]] = Counter()
    decode: Counter[tuple[int, int]] = Counter()
    live: Counter[tuple[int, int]] = Counter()

    def note(output: SchedulerOutput) -> None:
        lengths = [len(one.token_ids) for one in output.requests]
        need = max(one.num_context_tokens for one in output.requests)
        if output.phase is Phase.DECODE:
            decode[len(lengths), need] += 1
            live[len(lengths), need] += sum(one.num_context_tokens for one in output.requests)
        else:
            cached = [one.num_computed_tokens * len(one.token_ids) for one in output.requests]
            rows = packed_len(lengths)
            prefill[rows, sum(lengths), need, sum(cached) // rows] += 1

    execute: Callable[..., object] = engine.runner.execute
    with pytest.MonkeyPatch.context() as patch:

        def noted(runner: ModelRunner, output: SchedulerOutput) -> object:
            note(output)
            return execute(output)

        patch.setattr(ModelRunner, "execute", noted)
        for prompt_len, output_len in requests:
            engine.submit([1] * prompt_len, SamplingParams(temperature=0, max_tokens=output_len))
        engine.run()
    return prefill, decode, {key: live[key] / (key[0] * num) for key, num in decode.items()}


def simulated(requests: list[tuple[int, int]], shape: EngineShape) -> Steps:
    prompts, outputs = (np.array(lens) for lens in zip(*requests, strict=True))
    limits = ServiceLimits(
        shape.max_num_seqs, shape.max_model_len, 1, shape.block_size, shape.num_blocks
    )
    return simulate(Trace(prompts, outputs), limits, shape.policy(1), OneSecond())


@pytest.mark.parametrize("num_blocks", [17, 24, 160], ids=["scarce", "some", "ample"])
@settings(max_examples=8, deadline=None)
@given(requests=REQUESTS)
def test_steps_are_those_of_the_engine(num_blocks: int, requests: list[tuple[int, int]]) -> None:
    engine = engine_of(num_blocks)

    steps = simulated(requests, engine.shape)

    prefill, decode, live_lens = engine_steps(engine, requests)
    assert steps.prefill_shapes == prefill
    assert steps.decode_shapes == decode
    assert steps.live_lens == pytest.approx(live_lens)
    assert steps.busy_s == sum(prefill.values()) + sum(decode.values())


@pytest.mark.parametrize("num_blocks", [17, 160], ids=["scarce", "ample"])
@settings(max_examples=8, deadline=None)
@given(plan=any_plan(SHAPE.limits()), requests=REQUESTS)
def test_steps_of_any_plan_are_those_of_the_engine(
    num_blocks: int, plan: PlanFile, requests: list[tuple[int, int]]
) -> None:
    engine = build_engine(replace(SHAPE, num_blocks=num_blocks, plan=plan))

    steps = simulated(requests, engine.shape)

    assert (steps.prefill_shapes, steps.decode_shapes) == engine_steps(engine, requests)[:2]
    assert padded_tokens(steps, plan) == engine.runner.padding.total.num_padded_tokens


def padded_tokens(steps: Steps, plan: PlanFile) -> int:
    """Return what the simulated steps run with padding."""
    buckets = plan.bucket_plan()
    prefill = sum(
        count * buckets.pick_prefill(rows, context).num_tokens
        for (rows, _, context, _), count in steps.prefill_shapes.items()
    )
    decode = sum(
        count * buckets.pick_decode(*shape).num_seqs for shape, count in steps.decode_shapes.items()
    )
    return prefill + decode


def test_scarce_blocks_lead_to_preemptions() -> None:
    assert simulated([(20, 20)] * 4, replace(SHAPE, num_blocks=17)).num_preemptions > 0


@cache
def engine_of(num_blocks: int) -> TinyEngine:
    """Return one engine for all examples: what ran before leaves nothing behind."""
    return build_engine(replace(SHAPE, num_blocks=num_blocks))
