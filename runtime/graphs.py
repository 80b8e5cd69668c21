"""The compiled graphs of an engine: one per bucket, plus samplers, all made before serving.

Nothing compiles later: a bucket without a graph is an error, and the counter proves it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bucketing import Bucket, BucketPlan, DecodeBucket, ScoreBucket
from ..kernels.kernel_set import KernelSet
from .block_copies import BlockCopier, copy_name
from .compiled_set.identity import copy_key, graph_key, sampler_key, scorer_key
from .compiled_set.key import Key
from .errors import BackendError
from .graph_source import CompileHere, EngineGraph, GraphSource, RunsRows
from .graph_spec import GraphInput, GraphLayout, graph_spec, num_logits_rows
from .kv_cache import KVCache
from .model_graphs import ModelGraph
from .model_inputs import Arrays
from .models.decoder import Decoder
from .sampled_token import SampledToken
from .sampler import (
    SamplerGraph,
    SamplerSet,
    ScorerGraph,
    compile_scorer,
    sampler_name,
    scorer_name,
)
from .sampler_features import sampler_variants
from .sampler_stages import SamplerShape
from .sampling_state import SamplerRow
from .scheduler_output import Phase

Progress = Callable[[str, int, int], None]
"""Called with what is done ("load" or "compile" and a graph's label, at last "done"), how many
graphs are done and how many there are."""


@dataclass(frozen=True, slots=True)
class CompiledGraph:
    """One bucket's executable with its static buffers.

    ``arrays`` are numpy views of the input buffers; running leaves logits in ``logits_RV``.
    """

    bucket: Bucket
    spec: tuple[GraphInput, ...]
    arrays: Arrays
    logits_RV: Tensor
    run: Callable[[], None]

    @property
    def query_len(self) -> int:
        """Rows of logits per request."""
        return self.bucket.query_len if isinstance(self.bucket, DecodeBucket) else 1

    def run_rows(self, num_rows: int) -> None:
        """Run for the first rows only, on targets that can leave out the work of the others."""
        if isinstance(self.run, RunsRows):
            self.run.run_rows(num_rows)
        else:
            self.run()


class CompiledGraphs:
    """All graphs of a plan over one model and one KV cache."""

    def __init__(
        self,
        model: Decoder,
        kernels: KernelSet,
        cache: KVCache,
        *,
        plan: BucketPlan,
        layout: GraphLayout,
        sampler_features: Sequence[str],
        max_logprobs: int = 20,
        source: GraphSource | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
            model: that they run.
            kernels: of the target.
            cache: that they run over.
            plan: of all graphs that there are ever to be.
            layout: of their inputs.
            sampler_features: that samplers have at most.
            max_logprobs: that samplers return at most.
            source: where executables come from; None compiles them here.
        """
        self.plan = plan
        self.sampler_features = frozenset(sampler_features)
        self.max_logprobs = max_logprobs
        self.layout = layout
        self._source = source or CompileHere(kernels)
        self._kernels = kernels
        self._cache = cache
        self._modules = {phase: ModelGraph(model, phase, cache.group_of) for phase in Phase}
        self._model = model
        self._models: dict[Bucket, CompiledGraph] = {}
        self._samplers: dict[int, SamplerSet] = {}
        self._logits: dict[int, Tensor] = {}
        self._copier: BlockCopier | None = None
        self.scorer: ScorerGraph | None = None

    def compile(self, progress: Progress) -> None:
        """Compile every graph of the plan, limit graphs first, and the samplers they need.

        Raises:
            BackendError: a graph does not compile; names it and the setting to lower.
        """
        self.add_all(self.plan.buckets, progress)
        progress("done", len(self.plan.buckets), len(self.plan.buckets))

    def add_all(self, buckets: Sequence[Bucket], progress: Progress) -> None:
        """Add the graphs of buckets one by one, as ``add`` does."""
        num_there = len(self._models)
        for index, bucket in enumerate(buckets, num_there):
            progress(self._doing(bucket), index, num_there + len(buckets))
            self.add(bucket)

    def add(self, bucket: Bucket) -> None:
        """Compile the graph of a bucket and what its steps run beside it; all of them or none.

        Raises:
            BackendError: one does not compile; names it and the setting to lower.
            SetError: one is not there, and may not be compiled.
        """
        try:
            self._copier = self._copier or self._compile_copier()
            model = self.build(bucket, self._source)
            self._compile_readers(bucket)
        except (RuntimeError, MemoryError) as error:
            raise BackendError(_compile_failure(bucket, error)) from error
        self._models[bucket] = model

    def settle(self) -> None:
        """Wait until all memory of the graphs is there, which steps would have to wait for.

        Raises:
            MemoryError: there is not enough.
        """
        self._kernels.settle()

    def listing(self, bucket: Bucket) -> dict[str, Key]:
        """Return names and keys of the graphs that only steps of some buckets run, of this one."""
        shape = self._sampler_shape(bucket)
        listed = {bucket.label: graph_key(bucket, self.layout)}
        if isinstance(bucket, ScoreBucket):
            return listed | {scorer_name(shape): scorer_key(shape)}
        variants = sampler_variants(self.sampler_features)
        return listed | {sampler_name(shape, one): sampler_key(shape, one) for one in variants}

    def copy_listing(self) -> dict[str, Key]:
        """Return names and keys of the graphs that copy blocks, before steps of all buckets."""
        size, groups = self.plan.decode[-1].num_seqs, range(len(self._cache.groups))
        return {copy_name(group, size): copy_key(group, size) for group in groups}

    @property
    def num_compilations(self) -> int:
        """Graphs that were compiled in this process."""
        return self._source.num_compilations

    @property
    def models(self) -> Mapping[Bucket, CompiledGraph]:
        """The model graph of each bucket."""
        return self._models

    @property
    def copier(self) -> BlockCopier:
        """Copies blocks before a step; is there as soon as any graph of a bucket is."""
        assert self._copier is not None, "no graph was added"
        return self._copier

    @property
    def samplers(self) -> Collection[SamplerGraph]:
        """All samplers."""
        return [graph for one in self._samplers.values() for graph in one.graphs]

    def readers(self, graph: CompiledGraph) -> Collection[SamplerGraph]:
        """The samplers over the logits of a graph."""
        own = self._samplers.get(graph.logits_RV.shape[0])
        return () if own is None else own.graphs

    def drop(self, bucket: Bucket) -> None:
        """Forget the model graph of a bucket, if there is one."""
        self._models.pop(bucket, None)

    def sampler(self, rows: int, features: Collection[str]) -> SamplerGraph:
        """Return the sampler with these features over the logits of graphs of so many rows."""
        return self._samplers[rows].covering(features)

    def sample(
        self, graph: CompiledGraph, samplings: Sequence[SamplerRow | None]
    ) -> list[SampledToken]:
        """Draw from the logits of a graph that has run, for each request that asks for it."""
        rows = {row * graph.query_len: one for row, one in enumerate(samplings) if one is not None}
        return self._samplers[graph.logits_RV.shape[0]].sample(rows)

    def _doing(self, bucket: Bucket) -> str:
        """Return what is done to have the bucket's graph, for who waits for it."""
        return f"{'load' if self._source.will_load(bucket.label) else 'compile'} {bucket.label}"

    def build(self, bucket: Bucket, source: GraphSource) -> CompiledGraph:
        """Return an executable of a bucket from any source, with input buffers of its own.

        Raises:
            RuntimeError: it does not compile.
            SetError: the source has none, and may not compile.
        """
        spec = tuple(graph_spec(bucket, self.layout))
        inputs = {i.name: torch.full(i.shape, i.pad, dtype=torch.int32) for i in spec}
        logits = self._logits_buffer(num_logits_rows(bucket, self.layout))
        arguments = [inputs, self._cache.keys, self._cache.values]
        module = self._modules[Phase(bucket.phase)]
        key = graph_key(bucket, self.layout)
        run = source.get(EngineGraph(bucket.label, key, module, arguments, [logits]))
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return CompiledGraph(bucket, spec, arrays, logits, run)

    def _compile_copier(self) -> BlockCopier:
        max_num_seqs = self.plan.decode[-1].num_seqs
        return BlockCopier(self._cache, self._kernels, self._source, max_num_seqs=max_num_seqs)

    def _sampler_shape(self, bucket: Bucket) -> SamplerShape:
        rows, vocab_size = num_logits_rows(bucket, self.layout), self._model.architecture.vocab_size
        max_model_len = max(one.context_len for one in self.plan.buckets)
        return SamplerShape(rows, vocab_size, max_model_len, self.max_logprobs)

    def _compile_readers(self, bucket: Bucket) -> None:
        """Compile what reads the logits of the bucket's graph, where it is not there yet."""
        shape = self._sampler_shape(bucket)
        rows, logits_RV = shape.rows, self._logits_buffer(shape.rows)
        if isinstance(bucket, ScoreBucket):
            self.scorer = compile_scorer(self._kernels, self._source, logits_RV, shape)
            return
        if rows in self._samplers:
            return
        self._samplers[rows] = SamplerSet(
            self._kernels, self._source, logits_RV, shape, self.sampler_features
        )

    def _logits_buffer(self, rows: int) -> Tensor:
        """Return the buffer shared by all graphs of this many rows; they never run at once."""
        if rows not in self._logits:
            vocab_size = self._model.architecture.vocab_size
            self._logits[rows] = self._kernels.zeros((rows, vocab_size), self._model.logits_dtype)
        return self._logits[rows]


def _compile_failure(bucket: Bucket, error: Exception) -> str:
    reason = str(error).strip().split("\n")[0] or type(error).__name__
    setting = "max_num_seqs" if isinstance(bucket, DecodeBucket) else "max_num_batched_tokens"
    return (
        f"graph {bucket.label} failed to compile: {reason}; lower {setting} or max_model_len, "
        f"or take its size out of the bucket lists"
    )
