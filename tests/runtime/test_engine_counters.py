"""What an engine counts is what ran: each step and finished request once, nothing else."""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

import pytest
from plans import plan_data
from tiny_engine import EngineShape, TinyEngine, build_engine
from tiny_llm import TINY, script

from noria.bucketing import PlanFile, packed_len
from noria.bucketing.traces.counted_engine import CountedEngine
from noria.runtime import LLM
from noria.runtime.engine import OutputWatch
from noria.runtime.model_runner import ModelRunner
from noria.runtime.request import FinishReason, TextStream
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler_output import Phase, SchedulerOutput

PLAN = plan_data((5, 16, 40), chunks=((1, 5), (6, 16), (30, 40)), block_size=4)
SHAPE = EngineShape(max_num_seqs=4, block_size=4, plan=PlanFile.from_mapping(PLAN))
ENGINE = CountedEngine(limits=PlanFile.from_mapping(PLAN).limits)
PROMPTS = [3, 17, 9, 40, 1, 23]


@pytest.fixture
def planned() -> TinyEngine:
    return build_engine(SHAPE)


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=max_tokens)


def counted(planned: TinyEngine) -> dict[str, Any]:
    return planned.engine.counters.to_mapping(ENGINE)


def steps_of(engine: TinyEngine) -> dict[str, Counter[tuple[int, ...]]]:
    """Note every step that an engine runs from now on, its context in whole blocks."""
    noted: dict[str, Counter[tuple[int, ...]]] = {"prefill": Counter(), "decode": Counter()}
    execute = engine.runner.execute

    def note(output: SchedulerOutput) -> object:
        results = execute(output)
        lengths = [len(one.token_ids) for one in output.requests]
        need = max(one.num_context_tokens for one in output.requests)
        is_decode = output.phase is Phase.DECODE
        size, own = (len(lengths), 0) if is_decode else (packed_len(lengths),) * 2
        context = own + -(-max(0, need - own) // 4) * 4
        noted[output.phase.value][size, min(context, 64)] += 1
        return results

    engine.runner.execute = note  # type: ignore[method-assign,assignment]
    return noted


def test_every_step_and_request_is_counted(planned: TinyEngine) -> None:
    noted = steps_of(planned)
    requests = [planned.submit([1] * length, greedy(5 + length)) for length in PROMPTS]

    planned.run()

    found = counted(planned)
    prefill, decode = found["prefill"], found["decode"]
    assert {(size, context): num for size, context, num, _ in prefill} == noted["prefill"]  # type: ignore[attr-defined]
    assert {(size, context): num for size, context, num in decode} == noted["decode"]  # type: ignore[attr-defined]
    assert found["prompts"] == sorted(
        [one.num_prompt_tokens, len(one.output_token_ids), 1] for one in requests
    )
    graphs = planned.engine.counters.graphs
    num_prompt = sum(one.real_tokens for b, one in graphs.items() if b.phase == "prefill")
    num_decoded = sum(one.real_tokens for b, one in graphs.items() if b.phase == "decode")
    # The prompt of one token runs as a decode step.
    assert num_prompt == sum(PROMPTS) - 1
    assert num_decoded == sum(len(one.output_token_ids) for one in requests) - len(PROMPTS) + 1
    assert all(one.seconds > 0 for one in graphs.values())
    assert all(one.padded_tokens == one.num_steps * b.num_rows for b, one in graphs.items())


def test_what_did_not_finish_is_not_counted(planned: TinyEngine) -> None:
    cancelled = planned.submit([1] * 9, greedy(30))
    planned.engine.step()
    planned.engine.step()
    planned.engine.cancel(cancelled)
    planned.engine.cancel(cancelled)
    before = counted(planned)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ModelRunner, "run_graph", lambda *_: 1 / 0)
        request = planned.submit([1] * 9, greedy(1))
        with pytest.raises(ZeroDivisionError):
            planned.engine.step()

    assert counted(planned) == before
    assert (before["prompts"], planned.engine.counters.num_requests) == ([], 0)
    planned.run()
    assert request.is_finished
    assert counted(planned)["prompts"] == [[9, 1, 1]]


class Broken:
    """A text that cannot take a token."""

    text = ""

    def append(self, token_id: int) -> bool:
        raise ValueError("no text")


def test_a_request_that_fails_is_not_counted(planned: TinyEngine) -> None:
    watch = OutputWatch(lambda: cast(TextStream, Broken()), lambda: None)
    request = planned.submit([1] * 9, greedy(3), watch=watch)

    planned.run()

    assert request.finish_reason is FinishReason.ERROR
    assert planned.engine.counters.num_requests == 0


def test_a_sample_is_a_request_and_a_refused_one_is_none() -> None:
    llm = LLM(TINY)

    llm.generate([[1, 2, 3]], SamplingParams(temperature=1, n=3, max_tokens=4, ignore_eos=True))
    llm.generate(["a" * 200, "ab"], [script("x"), script("xy")])

    found = llm.counters
    assert found["prompts"] == [[2, 2, 1], [3, 4, 3]]


def test_scoring_has_graphs_and_is_no_traffic_to_plan_for() -> None:
    llm = LLM(TINY)

    llm.generate([[5] * 20], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0))

    found = llm.counters
    assert "score_t32_c96" in found["graphs"]  # type: ignore[operator]
    assert found["prefill"] == []
    assert [row[0] for row in found["decode"]] == [1]  # type: ignore[attr-defined]
