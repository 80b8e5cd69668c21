"""A state machine that does anything to an engine; what each request gets is what it gets alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import get_args

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from plans import any_plan
from unbatched import Ask, PairStop, Residues, answer

from noria.runtime.engine import OutputWatch
from noria.runtime.errors import RequestError
from noria.runtime.request import FinishReason, Request
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler_output import Phase as StepPhase
from noria.runtime.settings import SamplerFeature

MAX_STEPS = 3000
MAX_MODEL_LEN = 32
END_TOKEN_IDS = frozenset({11, 12, 13})

PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 0.5, 1.0, 1.5]),
    top_k=st.sampled_from([None, 5]),
    top_p=st.sampled_from([1.0, 0.75]),
    min_p=st.sampled_from([0.0, 0.125]),
    max_tokens=st.sampled_from([None, 1, 2, 5, 9]),
    min_tokens=st.sampled_from([0, 1]),
    seed=st.integers(0, 9),
    stop_token_ids=st.sampled_from([(), tuple(range(0, 61, 5))]),
    ignore_eos=st.booleans(),
    repetition_penalty=st.sampled_from([1.0, 2.0]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, -0.25]),
    logit_bias=st.sampled_from([None, {5: 3.0, 7: -100.0}]),
    bad_word_ids=st.sampled_from([(), ((3,), (4, 9))]),
    n=st.sampled_from([1, 1, 1, 2, 3]),
    logprobs=st.sampled_from([None, None, 0, 2]),
    prompt_logprobs=st.sampled_from([None, None, None, 1]),
)
ASKS = st.builds(
    Ask,
    prompt=st.lists(st.integers(0, 60), min_size=1, max_size=24).map(tuple),
    params=PARAMS,
    modulus=st.sampled_from([None, 4]),
    grammar_length=st.sampled_from([None, None, 3]),
)


class EngineMachine(RuleBasedStateMachine):
    """Submits, steps, cancels and breaks steps of one engine; compares at the end."""

    make_engine: Callable
    make_shape: Callable
    models: dict
    counts: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[Ask, Request]] = []
        self.failing = False

    @initialize(
        windows=st.sampled_from([(None, None), (None, 5), (3, None), (7, 7)]),
        block_size=st.sampled_from([1, 2, 3, 4, 8]),
        tokens=st.sets(st.integers(1, MAX_MODEL_LEN), min_size=1, max_size=2),
        seqs=st.sets(st.integers(1, 5), min_size=1, max_size=2),
        num_prefill_seqs=st.integers(1, 5),
        num_spare=st.sampled_from([0, 0, 1, 4]),
        prefill_contexts=st.sets(st.integers(1, MAX_MODEL_LEN - 1), max_size=1),
        decode_contexts=st.sets(st.integers(1, MAX_MODEL_LEN - 1), max_size=2),
    )
    def build(
        self,
        windows,
        block_size,
        tokens,
        seqs,
        num_prefill_seqs,
        num_spare,
        prefill_contexts,
        decode_contexts,
    ) -> None:
        """Build an engine whose pools hold little more than one request of full length."""
        architecture, self.dense = self.models[windows]
        shape = self.make_shape(
            max_num_batched_tokens=max(tokens),
            max_num_seqs=max(seqs),
            max_model_len=MAX_MODEL_LEN,
            max_num_prefill_seqs=min(num_prefill_seqs, max(seqs)),
            block_size=block_size,
            num_blocks=1 + -(-MAX_MODEL_LEN // block_size) + num_spare,
            tokens=tuple(sorted(tokens)),
            seqs=tuple(sorted(seqs)),
            prefill_context=tuple(sorted(prefill_contexts)),
            decode_context=tuple(sorted(decode_contexts)),
            end_token_ids=END_TOKEN_IDS,
            sampler_features=get_args(SamplerFeature),
        )
        self.tiny = self.make_engine(shape, architecture=architecture)
        self.num_compilations = self.tiny.graphs.num_compilations
        self.tiny.runner.run_graph = self.run_or_fail(self.tiny.runner.run_graph)

    def run_or_fail(self, run_graph: Callable) -> Callable:
        """Return a run_graph that counts what it runs and fails when it is told to."""

        def run(graph, output):
            self.counts[output.phase.value] += 1
            self.counts["copies"] += len(output.block_copies)
            is_prefill = output.phase is StepPhase.PREFILL
            self.counts["chunks"] += is_prefill and output.requests[-1].sampling is None
            run_graph(graph, output)
            if self.failing:
                raise RuntimeError("device lost")

        return run

    @rule(ask=ASKS, priority=st.sampled_from([0, 0, 0, -1, 3]))
    def submit(self, ask: Ask, priority: int) -> None:
        """Submit a prompt, all of its samples."""
        watch = OutputWatch(
            new_text=lambda: PairStop(ask.modulus) if ask.modulus else None,
            new_constraint=lambda: Residues(61, ask.grammar_length) if ask.grammar_length else None,
        )
        try:
            samples = self.tiny.engine.submit(
                ask.prompt, ask.params, priority=priority, watch=watch
            )
        except RequestError:
            assert ask.params.min_tokens > (ask.params.max_tokens or MAX_MODEL_LEN)
            return
        self.asked += [(ask, sample) for sample in samples]

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        """Run some steps."""
        for _ in range(count):
            self.tiny.engine.step()
            self.tiny.engine.check_invariants()

    @precondition(lambda self: self.asked)
    @rule(index=st.integers(0, 99))
    def cancel(self, index: int) -> None:
        """Cancel a request wherever it is."""
        self.tiny.engine.cancel(self.asked[index % len(self.asked)][1])

    @precondition(lambda self: self.tiny.engine.has_unfinished)
    @rule()
    def fail(self) -> None:
        """Let a step fail when its graph has run."""
        self.failing = True
        with pytest.raises(RuntimeError, match="device lost"):
            self.tiny.engine.step()
        self.failing = False

    @invariant()
    def agrees(self) -> None:
        """The cache agrees with the requests after every operation."""
        if hasattr(self, "tiny"):
            self.tiny.engine.check_invariants()

    def teardown(self) -> None:
        """Run to the end and compare."""
        if not hasattr(self, "tiny"):
            return
        for _ in range(MAX_STEPS):
            if not self.tiny.engine.has_unfinished:
                break
            self.tiny.engine.step()
            self.tiny.engine.check_invariants()
        assert not self.tiny.engine.has_unfinished, "a request does not end"
        assert set(self.tiny.kv_cache.num_free_blocks) == {self.tiny.shape.num_blocks - 1}
        assert self.tiny.graphs.num_compilations == self.num_compilations
        assert set(self.tiny.runner.padding.by_bucket) <= set(self.tiny.plan.buckets)
        for ask, request in self.asked:
            self.counts["preemptions"] += request.num_preemptions
            self.compare(ask, request)

    def compare(self, ask: Ask, request: Request) -> None:
        """Require that a request got what it gets alone, as far as it was not cancelled."""
        limits = self.tiny.engine.limits
        expected = answer(ask, request.sample, self.dense.logits, limits, END_TOKEN_IDS)
        count = len(request.output_token_ids)
        assert request.output_token_ids == expected.token_ids[:count]
        if request.finish_reason is FinishReason.CANCELLED:
            return
        assert request.output_token_ids == expected.token_ids
        assert request.finish_reason is expected.finish_reason
        if ask.params.logprobs is not None:
            self.compare_logprobs(request.output_token_ids, request.output_logprobs, expected)
        if ask.params.prompt_logprobs is not None and request.sample == 0:
            assert len(request.prompt_logprobs) == len(ask.prompt) - 1
            rows = self.dense.logits(ask.prompt).log_softmax(-1)
            for token_id, row, one in zip(
                ask.prompt[1:], rows[:-1], request.prompt_logprobs, strict=True
            ):
                assert one.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
                assert one.top[0][1] == pytest.approx(float(row.max()), abs=1e-4)

    def compare_logprobs(self, token_ids, logprobs, expected) -> None:
        """Require logprobs and ranks of the drawn tokens."""
        assert len(logprobs) == len(token_ids)
        for token_id, one, row in zip(token_ids, logprobs, expected.logprobs, strict=True):
            assert one.logprob == pytest.approx(row[token_id], abs=1e-4)
            assert one.rank == 1 + list(row).index(token_id)


class PlannedMachine(EngineMachine):
    """The same over engines that run a plan: any graphs, any rule for filling steps."""

    @initialize(
        windows=st.sampled_from([(None, None), (None, 5)]),
        block_size=st.sampled_from([1, 3, 4]),
        num_tokens=st.integers(1, 2 * MAX_MODEL_LEN),
        num_seqs=st.integers(1, 5),
        num_prefill_seqs=st.integers(1, 5),
        num_spare=st.sampled_from([0, 1, 4]),
        data=st.data(),
    )
    def build(
        self, windows, block_size, num_tokens, num_seqs, num_prefill_seqs, num_spare, data
    ) -> None:
        """Build an engine whose pools hold little more than one request of full length."""
        architecture, self.dense = self.models[windows]
        shape = self.make_shape(
            max_num_batched_tokens=num_tokens,
            max_num_seqs=num_seqs,
            max_model_len=MAX_MODEL_LEN,
            max_num_prefill_seqs=min(num_prefill_seqs, num_seqs),
            block_size=block_size,
            num_blocks=1 + -(-MAX_MODEL_LEN // block_size) + num_spare,
            end_token_ids=END_TOKEN_IDS,
            sampler_features=get_args(SamplerFeature),
        )
        plan = data.draw(any_plan(shape.limits()))
        self.counts[plan.policy] += 1
        self.tiny = self.make_engine(replace(shape, plan=plan), architecture=architecture)
        self.num_compilations = self.tiny.graphs.num_compilations
        self.tiny.runner.run_graph = self.run_or_fail(self.tiny.runner.run_graph)


class CompiledMachine(EngineMachine):
    """The same over one engine of compiled graphs, in which nothing may be left of a run."""

    compiled: tuple

    @initialize()
    def build(self) -> None:
        """Take the engine."""
        self.tiny, self.dense = self.compiled
        self.num_compilations = self.tiny.graphs.num_compilations
        self.tiny.runner.run_graph = self.run_or_fail(self.tiny.runner.run_graph)

    def teardown(self) -> None:
        """Compare, and leave the engine as it was."""
        super().teardown()
        del self.tiny.runner.run_graph
