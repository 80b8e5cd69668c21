"""Runs one step: copies blocks, picks the bucket, writes its padded inputs, runs it, samples.

It knows tensors and buckets, never queues.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..bucketing import Bucket, BucketPlan, PaddingCounter, decode_context_need, packed_len
from .graph_spec import GraphLayout
from .graphs import CompiledGraph, CompiledGraphs
from .model_inputs import fill_step
from .sampled_token import SampledToken, TokenLogprobs
from .scheduler_output import Phase, SchedulerOutput


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gives one request: a drawn token, logprobs of its prompt, or neither."""

    token: SampledToken | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class ModelRunner:
    """Executes steps on compiled graphs and counts what padding they ran."""

    def __init__(self, plan: BucketPlan, graphs: CompiledGraphs, layout: GraphLayout) -> None:
        """Run the graphs of this plan; all of them must be compiled."""
        self._plan = plan
        self._graphs = graphs
        self.layout = layout
        self._pick = {
            Phase.PREFILL: self._pick_prefill,
            Phase.SCORE: self._pick_score,
            Phase.DECODE: self._pick_decode,
        }
        self._finish = {
            Phase.PREFILL: self._draw,
            Phase.SCORE: self._score,
            Phase.DECODE: self._draw,
        }
        self.padding = PaddingCounter()
        self._seconds: dict[Bucket, float] = {}

    def use(self, plan: BucketPlan) -> None:
        """Run the graphs of this plan from now on; all of them must be there."""
        self._plan = plan

    def execute(self, output: SchedulerOutput) -> list[StepResult]:
        """Run the step and return what it gives each request, in order."""
        start = time.perf_counter()
        graph = self._graphs.models[self._pick[output.phase](output)]
        self._graphs.copier.run(output.block_copies)
        self.run_graph(graph, output)
        results = self._finish[output.phase](graph, output)
        seconds = self._seconds.get(graph.bucket, 0.0) + time.perf_counter() - start
        self._seconds[graph.bucket] = seconds
        return results

    @property
    def seconds_by_bucket(self) -> Mapping[Bucket, float]:
        """Seconds that the steps of each bucket took: inputs, graph and sampling."""
        return self._seconds

    def run_graph(self, graph: CompiledGraph, output: SchedulerOutput) -> None:
        """Write the step into the graph's buffers and run it; logits stay in its buffer."""
        fill_step(graph.arrays, output, graph.spec, self.layout)
        graph.run()
        self.padding.add(graph.bucket, output.num_scheduled_tokens)

    def _draw(self, graph: CompiledGraph, output: SchedulerOutput) -> list[StepResult]:
        """Draw the next token of the requests that have come to their last one."""
        samplings = [request.sampling for request in output.requests]
        sampled = iter(self._graphs.sample(graph, samplings))
        return [StepResult(None if one is None else next(sampled)) for one in samplings]

    def _score(self, graph: CompiledGraph, output: SchedulerOutput) -> list[StepResult]:
        """Return the logprobs of the prompt tokens behind each token of the step."""
        assert self._graphs.scorer is not None, "a plan without a graph for logprobs of prompts"
        starts = graph.arrays["query_start_loc"].tolist()
        next_ids: dict[int, int] = {}
        num_top: dict[int, int] = {}
        for start, request in zip(starts, output.requests, strict=False):
            rows = range(start, start + len(request.next_token_ids))
            next_ids.update(zip(rows, request.next_token_ids, strict=True))
            num_top.update(dict.fromkeys(rows, request.num_prompt_logprobs))
        scored = iter(self._graphs.scorer.score(next_ids, num_top))
        return [
            StepResult(prompt_logprobs=[next(scored) for _ in request.next_token_ids])
            for request in output.requests
        ]

    def _pick_prefill(self, output: SchedulerOutput) -> Bucket:
        return self._plan.pick_prefill(*self._prefill_need(output))

    def _pick_score(self, output: SchedulerOutput) -> Bucket:
        return self._plan.pick_score(*self._prefill_need(output))

    def _prefill_need(self, output: SchedulerOutput) -> tuple[int, int]:
        """Return the rows that the step takes, and its longest context."""
        lengths = [len(request.token_ids) for request in output.requests]
        context_len = max(request.num_context_tokens for request in output.requests)
        return packed_len(lengths, self.layout.prefill_tile), context_len

    def _pick_decode(self, output: SchedulerOutput) -> Bucket:
        computed = max(request.num_computed_tokens for request in output.requests)
        need = decode_context_need(computed, num_speculative_tokens=0)
        return self._plan.pick_decode(len(output.requests), need)
