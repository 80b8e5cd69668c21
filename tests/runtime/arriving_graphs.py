"""Engines whose graphs arrive when a test says so: compiled once, loaded by every engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tiny_engine import EngineShape, TinyEngine, build_engine

from noria.bucketing import Bucket, FillPolicy
from noria.kernels.cpu import CpuKernels
from noria.runtime.arrivals import Compiling, GraphArrivals
from noria.runtime.compiled_set.local_set import LocalSet
from noria.runtime.compiled_set.set_source import FromLocalSet
from noria.runtime.engine import Engine
from noria.runtime.graph_source import EngineGraph, GraphSource, Run
from noria.runtime.graphs import CompiledGraphs
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.model_runner import ModelRunner
from noria.runtime.request import Request
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler import Scheduler
from noria.runtime.scheduler_output import Phase
from noria.runtime.warmup import WarmUp

SHAPE = EngineShape(
    max_num_batched_tokens=32,
    max_num_seqs=4,
    max_model_len=32,
    max_num_prefill_seqs=2,
    block_size=4,
    num_blocks=17,
    tokens=(8, 32),
    seqs=(1, 2, 4),
    decode_context=(16,),
    sampler_features=("greedy", "top_k_top_p", "logprobs", "prompt_logprobs"),
)


class Announced(Compiling):
    """Says what a test says."""

    def __init__(self) -> None:
        self.ready: frozenset[str] = frozenset()
        self.failed: dict[str, str] = {}
        self.problem: str | None = None
        self.over = False
        self.num_waits = 0

    @property
    def is_over(self) -> bool:
        return self.over

    def start(self) -> None:
        return

    def wait_for_news(self, num_seen: int, timeout_s: float) -> int:
        self.num_waits += 1
        return num_seen

    def close(self) -> None:
        self.over = True


def fill_policy(shape: EngineShape, max_num_tokens: int) -> FillPolicy:
    return FillPolicy(max_num_tokens=max_num_tokens, max_num_seqs=shape.max_num_prefill_seqs)


Change = Callable[[str, Run], Run]
"""Makes another executable of that of a graph, by its name."""


class Changed(GraphSource):
    """Graphs of a source, some of them not as they were compiled."""

    num_compilations = 0

    def __init__(self, source: FromLocalSet, change: Change) -> None:
        self._source = source
        self._change = change

    def get(self, graph: EngineGraph) -> Run:
        return self._change(graph.name, self._source.get(graph))


@dataclass
class Arriving:
    """An engine that begins with the limit graphs, and its parts."""

    tiny: TinyEngine
    engine: Engine
    runner: ModelRunner
    graphs: CompiledGraphs
    warm_up: WarmUp
    kv_cache: KVCacheManager
    arrivals: GraphArrivals
    compiling: Announced
    requests: list[Request] = field(default_factory=list)

    def announce(self, *buckets: Bucket) -> None:
        """Say that all graphs of these buckets are there."""
        names = [name for one in buckets for name in self.graphs.listing(one)]
        self.compiling.ready |= frozenset(names)

    def submit(self, prompt: Sequence[int], params: SamplingParams) -> Request:
        """Queue a prompt."""
        self.requests += self.engine.submit(prompt, params)
        return self.requests[-1]

    def step(self) -> None:
        """Run a step; check everything."""
        self.engine.step()
        self.engine.check_invariants()

    def finish(self) -> list[list[int]]:
        """Run to the end; return the tokens of all requests."""
        while self.engine.has_unfinished:
            self.step()
        return [request.output_token_ids for request in self.requests]

    @property
    def used(self) -> set[Bucket]:
        """Buckets that steps ran in."""
        return set(self.runner.padding.by_bucket)


class Workshop:
    """Compiles the graphs of a shape once, and builds engines that load them."""

    def __init__(self, folder: Path, shape: EngineShape = SHAPE) -> None:
        """Compile them into a set in this folder."""
        self.kernels = CpuKernels()
        self.tiny = build_engine(shape, kernels=self.kernels, dtype=torch.float32)
        self.store = LocalSet(folder, key={"test": 1}, num_blocks=())
        self._graphs(FromLocalSet(self.store, self.kernels)).compile(lambda *now: None)

    def engine(
        self, buckets: Sequence[Bucket] | None = None, change: Change = lambda name, run: run
    ) -> Arriving:
        """Return an engine that has these buckets at first; None: the limit graphs."""
        tiny, plan = self.tiny, self.tiny.plan
        source = FromLocalSet(self.store, self.kernels)
        source.may_compile = False
        graphs = self._graphs(Changed(source, change))
        first = plan.limits if buckets is None else buckets
        graphs.add_all([one for one in plan.buckets if one in first], lambda *now: None)
        vocab_size = tiny.model.architecture.vocab_size
        warm_up = WarmUp(
            graphs, tiny.cache, plan.buckets, vocab_size=vocab_size, dtype=torch.float32
        )
        warm_up.run()
        runner = ModelRunner(plan.restricted_to(graphs.models), graphs, graphs.layout)
        kv_cache = KVCacheManager(tiny.cache.groups, max_query_len=tiny.shape.tokens[-1])
        compiling = Announced()
        later = [bucket for bucket in plan.buckets if bucket not in graphs.models]
        arrivals = GraphArrivals(later, compiling, graphs=graphs, warm_up=warm_up, runner=runner)
        fill = fill_policy(tiny.shape, tiny.shape.tokens[-1])
        score = fill_policy(tiny.shape, tiny.shape.tokens[0])
        policies = {Phase.PREFILL: fill, Phase.SCORE: score}
        engine = Engine(
            Scheduler(kv_cache, policies, max_num_seqs=tiny.shape.max_num_seqs),
            runner,
            kv_cache,
            limits=tiny.engine.limits,
            end_token_ids=frozenset(),
            seed=0,
            arrivals=arrivals,
        )
        return Arriving(tiny, engine, runner, graphs, warm_up, kv_cache, arrivals, compiling)

    def _graphs(self, source: GraphSource) -> CompiledGraphs:
        return CompiledGraphs(
            self.tiny.model,
            self.kernels,
            self.tiny.cache,
            plan=self.tiny.plan,
            layout=self.tiny.graphs.layout,
            sampler_features=self.tiny.shape.sampler_features,
            max_logprobs=5,
            source=source,
        )
