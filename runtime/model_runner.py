"""Runs one step: picks the bucket, writes its padded inputs, runs its graph, samples.

It knows tensors and buckets, never queues.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from ..bucketing import BucketPlan, PaddingCounter, decode_context_need, packed_len
from .graph_spec import GraphLayout
from .graphs import Bucket, CompiledGraph, CompiledGraphs
from .model_inputs import fill_step
from .sampled_token import SampledToken
from .scheduler_output import Phase, SchedulerOutput


class ModelRunner:
    """Executes steps on compiled graphs and counts what padding they ran."""

    def __init__(self, plan: BucketPlan, graphs: CompiledGraphs, layout: GraphLayout) -> None:
        """Run the graphs of this plan; all of them must be compiled."""
        self._plan = plan
        self._graphs = graphs
        self.layout = layout
        self._pick = {Phase.PREFILL: self._pick_prefill, Phase.DECODE: self._pick_decode}
        self.padding = PaddingCounter()
        self._seconds: dict[Bucket, float] = {}

    def execute(self, output: SchedulerOutput) -> list[SampledToken | None]:
        """Run the step and return what was drawn for each request, in order."""
        start = time.perf_counter()
        graph = self._graphs.models[self._pick[output.phase](output)]
        self.run_graph(graph, output)
        samplings = [request.sampling for request in output.requests]
        sampled = iter(self._graphs.sample(graph, samplings))
        tokens = [None if sampling is None else next(sampled) for sampling in samplings]
        seconds = self._seconds.get(graph.bucket, 0.0) + time.perf_counter() - start
        self._seconds[graph.bucket] = seconds
        return tokens

    @property
    def seconds_by_bucket(self) -> Mapping[Bucket, float]:
        """Seconds that the steps of each bucket took: inputs, graph and sampling."""
        return self._seconds

    def run_graph(self, graph: CompiledGraph, output: SchedulerOutput) -> None:
        """Write the step into the graph's buffers and run it; logits stay in its buffer."""
        fill_step(graph.arrays, output, graph.spec, self.layout)
        graph.run()
        self.padding.add(graph.bucket, output.num_scheduled_tokens)

    def _pick_prefill(self, output: SchedulerOutput) -> Bucket:
        lengths = [len(request.token_ids) for request in output.requests]
        context_len = max(request.num_context_tokens for request in output.requests)
        return self._plan.pick_prefill(packed_len(lengths, self.layout.prefill_tile), context_len)

    def _pick_decode(self, output: SchedulerOutput) -> Bucket:
        computed = max(request.num_computed_tokens for request in output.requests)
        need = decode_context_need(computed, num_speculative_tokens=0)
        return self._plan.pick_decode(len(output.requests), need)
