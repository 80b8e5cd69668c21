"""Runs one step: copies blocks, picks the bucket, writes its padded inputs, runs it, samples.

It knows tensors and buckets, never queues.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..bucketing import Bucket, BucketPlan, PaddingCounter, decode_context_need, packed_len
from .graph_spec import GraphLayout
from .graphs import CompiledGraph, CompiledGraphs
from .model_inputs import fill_step
from .sampled_token import SampledToken, TokenLogprobs
from .scheduler_output import Phase, SchedulerOutput
from .step_counters import StepCounters


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step gives one request: a drawn token, logprobs of its prompt, or neither."""

    token: SampledToken | None = None
    prompt_logprobs: Sequence[TokenLogprobs] = ()


class ModelRunner:
    """Executes steps on compiled graphs and counts them."""

    def __init__(self, plan: BucketPlan, graphs: CompiledGraphs, layout: GraphLayout) -> None:
        """Run the graphs of this plan; all of them must be compiled."""
        self._plan = plan
        self._graphs = graphs
        self.layout = layout
        self.counters = StepCounters.of_plan(plan, layout.groups[0].block_size)
        self._pick: Mapping[Phase, Callable[[BucketPlan, int, int], Bucket]] = {
            Phase.PREFILL: BucketPlan.pick_prefill,
            Phase.SCORE: BucketPlan.pick_score,
            Phase.DECODE: BucketPlan.pick_decode,
        }
        self._need = {
            Phase.PREFILL: self._prefill_need,
            Phase.SCORE: self._prefill_need,
            Phase.DECODE: _decode_need,
        }
        self._finish = {
            Phase.PREFILL: self._draw,
            Phase.SCORE: self._score,
            Phase.DECODE: self._draw,
        }

    @property
    def padding(self) -> PaddingCounter:
        """Real tokens and padding of the steps so far."""
        return self.counters.padding

    def use(self, plan: BucketPlan) -> None:
        """Run the graphs of this plan from now on; all of them must be there."""
        self._plan = plan

    def execute(self, output: SchedulerOutput) -> list[StepResult]:
        """Run the step and return what it gives each request, in order.

        A step is counted when it has ended, with its seconds: inputs, graph and sampling.
        """
        start = time.perf_counter()
        size, context_len = self._need[output.phase](output)
        graph = self._graphs.models[self._pick[output.phase](self._plan, size, context_len)]
        self._graphs.copier.run(output.block_copies)
        self.run_graph(graph, output)
        results = self._finish[output.phase](graph, output)
        self.counters.add_step(
            graph.bucket,
            size,
            context_len,
            num_tokens=output.num_scheduled_tokens,
            num_requests=len(output.requests),
            seconds=time.perf_counter() - start,
        )
        return results

    def run_graph(self, graph: CompiledGraph, output: SchedulerOutput) -> None:
        """Write the step into the graph's buffers and run it; logits stay in its buffer."""
        fill_step(graph.arrays, output, graph.spec, self.layout)
        graph.run()

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

    def _prefill_need(self, output: SchedulerOutput) -> tuple[int, int]:
        """Return the rows that the step takes, and its longest context."""
        lengths = [len(request.token_ids) for request in output.requests]
        context_len = max(request.num_context_tokens for request in output.requests)
        return packed_len(lengths, self.layout.prefill_tile), context_len


def _decode_need(output: SchedulerOutput) -> tuple[int, int]:
    """Return the requests of the step, and its longest context."""
    computed = max(request.num_computed_tokens for request in output.requests)
    return len(output.requests), decode_context_need(computed, num_speculative_tokens=0)
