"""Tiny engines, built without a configuration and open to tests."""

from __future__ import annotations

import json
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from noria.bucketing import (
    BucketLists,
    BucketPlan,
    FillPolicy,
    PlanFile,
    PlanLimits,
    StepPolicy,
    plan_buckets,
)
from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels
from noria.runtime.engine import Engine, EngineLimits
from noria.runtime.graph_source import CompileHere, EngineGraph, GraphSource, Run
from noria.runtime.graph_spec import GraphLayout, GroupLayout
from noria.runtime.graphs import CompiledGraphs
from noria.runtime.kv_cache import CacheSize, KVCache, decoder_groups, sized
from noria.runtime.kv_cache_manager import KVCacheManager
from noria.runtime.model_runner import ModelRunner
from noria.runtime.models.architecture import Architecture, LayerKind, expected_tensors
from noria.runtime.models.decoder import Decoder
from noria.runtime.request import Request
from noria.runtime.sampling_params import SamplingParams
from noria.runtime.scheduler import Scheduler
from noria.runtime.scheduler_output import Phase

TINY = Architecture(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    layers=(LayerKind(),) * 2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    tie_word_embeddings=True,
    max_position_embeddings=512,
)


@dataclass(frozen=True)
class EngineShape:
    """Settings of a tiny engine, as a configuration would have them."""

    max_num_batched_tokens: int = 64
    max_num_seqs: int = 8
    max_model_len: int = 64
    max_num_prefill_seqs: int = 4
    block_size: int = 4
    num_blocks: int = 160
    tokens: tuple[int, ...] = (16, 64)
    seqs: tuple[int, ...] = (1, 2, 4, 8)
    prefill_context: tuple[int, ...] = ()
    decode_context: tuple[int, ...] = ()
    end_token_ids: frozenset[int] = frozenset()
    sampler_features: tuple[str, ...] = ("greedy", "top_k_top_p")
    plan: PlanFile | None = None
    """In place of the bucket lists."""

    @property
    def max_prefill_tokens(self) -> int:
        """Of the largest prefill graph."""
        if self.plan is None:
            return self.tokens[-1]
        return max(graph.bucket.size for graph in self.plan.prefill)

    def limits(self, prefill_tile: int = 1, fold_blocks: int = 1) -> PlanLimits:
        """Return what bounds the graphs, with the alignment of a target."""
        return PlanLimits(
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            max_num_prefill_seqs=self.max_num_prefill_seqs,
            block_size=self.block_size,
            prefill_tile=prefill_tile,
            fold_blocks=fold_blocks,
        )

    def bucket_plan(self, limits: PlanLimits) -> BucketPlan:
        """Return the graphs of a plan, or of the lists."""
        has_scores = "prompt_logprobs" in self.sampler_features
        if self.plan is not None:
            return self.plan.bucket_plan(has_scores=has_scores)
        lists = BucketLists(self.tokens, self.seqs, self.prefill_context, self.decode_context)
        return plan_buckets(limits, lists, has_scores=has_scores)

    def policy(self, prefill_tile: int) -> StepPolicy:
        """Return how prompts fill a step."""
        if self.plan is not None:
            return self.plan.step_policy()
        return FillPolicy(self.tokens[-1], self.max_num_prefill_seqs, prefill_tile)


@dataclass(frozen=True)
class TinyEngine:
    """An engine and its parts, open to the test."""

    engine: Engine
    scheduler: Scheduler
    runner: ModelRunner
    graphs: CompiledGraphs
    cache: KVCache
    kv_cache: KVCacheManager
    model: Decoder
    plan: BucketPlan
    shape: EngineShape

    def run(self) -> None:
        """Step until every request has ended, checking invariants after every step."""
        for _ in range(10_000):
            if not self.engine.has_unfinished:
                break
            self.engine.step()
            self.engine.check_invariants()
        assert not self.engine.has_unfinished
        assert set(self.kv_cache.num_free_blocks) == {self.shape.num_blocks - 1}

    def submit(self, prompt: Sequence[int], params: SamplingParams, **options: object) -> Request:
        """Queue a prompt; return its only request, or the first of its samples."""
        return self.engine.submit(prompt, params, **options)[0]

    def generate(self, prompts: Sequence[Sequence[int]], params: SamplingParams) -> list[list[int]]:
        """Return the tokens of each prompt, run together."""
        requests = [self.submit(prompt, params) for prompt in prompts]
        self.run()
        return [request.output_token_ids for request in requests]


class TraceOnce(CompileHere):
    """Compiles, but traces what engines of the same model have alike only once in a process.

    Nearly all of the time that a tiny engine takes goes into tracing, which sees no weights.
    """

    traces: dict[Hashable, bytes] = {}  # noqa: RUF012

    def __init__(self, kernels: CpuKernels, engine: Hashable) -> None:
        """Trace with these kernels; ``engine`` is what a graph depends on beside its key."""
        super().__init__(kernels)
        self._engine = engine

    def get(self, graph: EngineGraph) -> Run:
        """Load the trace, which is made if there is none yet."""
        self._num_compilations += 1
        place = (self._engine, graph.name, json.dumps(graph.key, sort_keys=True))
        if place not in self.traces:
            self.traces[place] = self._kernels.trace(graph.module, graph.inputs)
        return self._kernels.load(self.traces[place], graph.module, graph.inputs, graph.outputs)


def graph_source(kernels: KernelSet, *engine: Hashable) -> GraphSource:
    """Return what compiles for a tiny engine; kernels that a test has changed trace all anew."""
    if type(kernels) is CpuKernels and vars(kernels).keys() == vars(CpuKernels()).keys():
        return TraceOnce(kernels, (kernels.library, *engine))
    return CompileHere(kernels)


def random_tensors(architecture: Architecture, seed: int = 0) -> dict[str, Tensor]:
    """Return seeded fp64 weights under Hugging Face names."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in expected_tensors(architecture).items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        tensors[name] = 1 + 0.1 * noise if len(shape) == 1 and "norm" in name else 0.3 * noise
    return tensors


def build_engine(
    shape: EngineShape | None = None,
    *,
    kernels: KernelSet | None = None,
    dtype: torch.dtype = torch.float64,
    cache_dtype: torch.dtype | None = None,
    architecture: Architecture = TINY,
    tensors: dict[str, Tensor] | None = None,
) -> TinyEngine:
    """Build an engine without a configuration; `reference` kernels in fp64 by default."""
    shape = shape or EngineShape()
    kernels = kernels or ReferenceKernels()
    tensors = tensors or random_tensors(architecture)
    model = Decoder(architecture, kernels, tensors, dtype=dtype, max_model_len=shape.max_model_len)
    groups = decoder_groups(architecture, block_size=shape.block_size, dtype=cache_dtype or dtype)
    groups = sized(groups, CacheSize((shape.num_blocks,) * len(groups), "given"))
    cache = KVCache(groups, kernels)
    layout = GraphLayout(
        tuple(GroupLayout(group.block_size, group.window) for group in groups),
        shape.max_num_prefill_seqs,
        kernels.prefill_tile,
        kernels.fold_blocks,
        architecture.has_experts,
    )
    limits = shape.limits(kernels.prefill_tile, kernels.fold_blocks)
    plan = shape.bucket_plan(limits)
    source = graph_source(
        kernels, architecture, dtype, cache_dtype, shape.num_blocks, shape.max_model_len
    )
    graphs = CompiledGraphs(
        model,
        kernels,
        cache,
        plan=plan,
        layout=layout,
        sampler_features=shape.sampler_features,
        source=source,
    )
    graphs.compile(lambda label, index, total: None)
    kv_cache = KVCacheManager(groups, max_query_len=shape.max_prefill_tokens)
    policies = {Phase.PREFILL: shape.policy(kernels.prefill_tile)}
    if plan.score:
        policies[Phase.SCORE] = FillPolicy(
            plan.score[-1].num_tokens, shape.max_num_prefill_seqs, kernels.prefill_tile
        )
    scheduler = Scheduler(kv_cache, policies, max_num_seqs=shape.max_num_seqs)
    runner = ModelRunner(plan, graphs, layout)
    engine = Engine(
        scheduler,
        runner,
        kv_cache,
        limits=EngineLimits(
            architecture.vocab_size,
            shape.max_model_len,
            frozenset(shape.sampler_features),
            max_logprobs=5,
            has_priorities=True,
        ),
        end_token_ids=shape.end_token_ids,
        seed=0,
    )
    return TinyEngine(engine, scheduler, runner, graphs, cache, kv_cache, model, plan, shape)
