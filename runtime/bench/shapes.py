"""``noria bench shapes``: seconds of full steps of many shapes, on the device at hand.

Shapes take turns, in another order every round, and the median of each counts: whatever disturbs
the machine for a while then falls on all of them.
"""

from __future__ import annotations

import os
import platform
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch

from ...bucketing import Bucket, BucketLists, BucketPlan, PlanLimits, plan_buckets
from ...bucketing.costs.table import CostTable, Device, GraphCost, StepTime
from ...kernels.contract import KVGroup, num_blocks_for
from ...kernels.kernel_set import KernelSet
from ..assembly import Assembly, assemble, build_model, limits_of
from ..backends import load_kernels
from ..block_counts import resolve_cache_size
from ..block_table import BlockTable
from ..config import Config, load_config
from ..errors import ConfigError
from ..graph_source import EngineGraph, GraphSource, Run
from ..graphs import CompiledGraph
from ..kv_cache_dtype import cache_scales
from ..model_checks import check_logits_fit, check_model_len, check_weights_fit
from ..model_runner import ModelRunner
from ..models.locations import model_name
from ..models.sources import LoadedModel, open_model
from ..process_limits import usable_cpus
from ..sampling_params import SamplingParams
from ..sampling_state import SamplerRow
from ..scheduler_output import Phase, ScheduledRequest, SchedulerOutput
from ..step_costs import model_shape
from .kernel_limits import kernel_sheet
from .machine import cpu_name
from .processes import CpuWatch
from .shape_sizes import Shape, ShapeSizes, auto_sizes, merged, read_sizes, shapes_of

NUM_ROUNDS = 7
MEASURABLE = ("cpu", "reference")
PARAMS = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapesOptions:
    """What is measured besides the graphs of the configuration, and how often.

    Attributes:
        sizes: rows of prefill graphs: ``auto``, ``plan`` for none, or a list with commas.
        num_seqs: requests of decode graphs, likewise.
        num_rounds: measured steps of each shape.
        num_threads: None: the configuration's, or else all CPUs.
    """

    sizes: str = "auto"
    num_seqs: str = "auto"
    num_rounds: int = NUM_ROUNDS
    num_threads: int | None = None


def bench_shapes(config: str | Path, options: ShapesOptions, *, progress: Progress) -> CostTable:
    """Measure the graphs of a configuration, and others of its model.

    Raises:
        NoriaError: a setting or the model does not fit, or the backend's seconds mean nothing.
    """
    settings = load_config(config)
    if settings.backend not in MEASURABLE:
        raise ConfigError(
            f"backend: {settings.backend} is no device whose seconds can be measured here "
            f"(measurable: {', '.join(MEASURABLE)})"
        )
    num_threads = options.num_threads or settings.num_threads or usable_cpus()
    torch.set_num_threads(num_threads)
    kernels = load_kernels(settings.backend, settings.target)
    sheet = kernel_sheet(kernels, cpu_name(), settings.dtype)
    source = open_model(settings.model, tokenizer=settings.tokenizer)
    limits = limits_of(settings, kernels)
    sizes = chosen_sizes(settings, options, limits)
    compiled = _CompileTimes(kernels)
    plan = _plan(settings, sizes, limits)
    parts = _assemble(settings, kernels, source, plan, compiled)
    num_graphs = len(plan.buckets)
    total = num_graphs + options.num_rounds + 1  # one round does not count
    parts.graphs.compile(lambda label, done, _: progress(label, done, total))
    steps = _Steps(plan, parts, source.architecture.vocab_size)
    shapes = shapes_of(sizes, max_model_len=settings.max_model_len, fits=steps.fits)
    watch = CpuWatch(os.getpid())
    times = steps.measure(
        shapes,
        num_rounds=options.num_rounds,
        progress=lambda what, done, _: progress(what, num_graphs + done, total),
    )
    return CostTable(
        device=Device(sheet.name, settings.backend, num_threads),
        model_name=model_name(settings.model),
        dtype=settings.dtype,
        model=model_shape(settings, source.architecture),
        num_logits_rows=settings.max_num_prefill_seqs,
        software=_software(kernels),
        prefill=tuple(times[shape] for shape in shapes if not shape.is_decode),
        decode=tuple(times[shape] for shape in shapes if shape.is_decode),
        graphs=compiled.costs(plan.buckets),
        sheet=sheet,
        others_share=watch.others_share(),
    )


def chosen_sizes(config: Config, options: ShapesOptions, limits: PlanLimits) -> ShapeSizes:
    """Return the sizes of the configuration, and those that are asked for.

    Raises:
        ConfigError: a size is none, or beyond the limits of the configuration.
    """
    planned = ShapeSizes(config.num_batched_tokens_buckets, config.num_seqs_buckets)
    auto = auto_sizes(planned, prefill_tile=limits.prefill_tile)
    tokens = _asked("--sizes", options.sizes, planned.num_tokens, auto.num_tokens)
    num_seqs = _asked("--num-seqs", options.num_seqs, planned.num_seqs, auto.num_seqs)
    return merged(planned, ShapeSizes(tokens, num_seqs))


def _asked(
    name: str, text: str, planned: tuple[int, ...], auto: tuple[int, ...]
) -> tuple[int, ...]:
    named = {"plan": planned, "auto": auto}
    return named[text] if text in named else read_sizes(name, text, planned[-1])


def _plan(config: Config, sizes: ShapeSizes, limits: PlanLimits) -> BucketPlan:
    lists = BucketLists(
        num_batched_tokens=sizes.num_tokens,
        num_seqs=sizes.num_seqs,
        prefill_context=config.prefill_context_length_buckets,
        decode_context=config.decode_context_length_buckets,
    )
    try:
        return plan_buckets(limits, lists)
    except ValueError as error:
        raise ConfigError(f"--sizes: {error}") from None


def _assemble(
    config: Config,
    kernels: KernelSet,
    source: LoadedModel,
    plan: BucketPlan,
    compiled: GraphSource,
) -> Assembly:
    architecture = source.architecture
    check_model_len(config, architecture)
    check_weights_fit(config, architecture)
    check_logits_fit(config, architecture)
    scales = cache_scales(config, source)
    model = build_model(config, architecture, kernels, source.tensors, scales)
    size = resolve_cache_size(config, architecture)
    return assemble(config, model, kernels, size, compiled, plan=plan)


def _software(kernels: KernelSet) -> Mapping[str, str]:
    from .. import __version__

    versions = {"noria": __version__, "torch": str(torch.__version__)}
    return versions | {"python": platform.python_version()} | dict(kernels.fingerprint)


class _CompileTimes(GraphSource):
    """Compiles graphs, and notes how long each took and how many bytes came out."""

    def __init__(self, kernels: KernelSet) -> None:
        self._kernels = kernels
        self._taken: dict[str, tuple[float, int]] = {}

    @property
    def num_compilations(self) -> int:
        return len(self._taken)

    def get(self, graph: EngineGraph) -> Run:
        start = time.perf_counter()
        traced = self._kernels.trace(graph.module, graph.inputs, graph.outputs)
        self._taken[graph.name] = (time.perf_counter() - start, len(traced))
        return self._kernels.load(traced, graph.module, graph.inputs, graph.outputs)

    def costs(self, buckets: Sequence[Bucket]) -> tuple[GraphCost, ...]:
        return tuple(
            GraphCost(bucket.label, bucket.num_rows, *self._taken[bucket.label])
            for bucket in buckets
        )


class _Steps:
    """Full steps of graphs that are compiled."""

    def __init__(self, plan: BucketPlan, parts: Assembly, vocab_size: int) -> None:
        self._plan, self._parts, self._vocab_size = plan, parts, vocab_size
        self._runner = ModelRunner(plan, parts.graphs, parts.graphs.layout)

    def fits(self, num_seqs: int, num_computed: int, num_new: int) -> bool:
        """Return whether so many requests have blocks of their own."""
        return all(
            num_seqs * len(_live_blocks(group, num_computed, num_new)) < group.num_blocks
            for group in self._parts.groups
        )

    def measure(
        self, shapes: Sequence[Shape], *, num_rounds: int, progress: Progress
    ) -> dict[Shape, StepTime]:
        """Run every shape once, which does not count, and then so many rounds."""
        seconds: dict[Shape, list[float]] = {shape: [] for shape in shapes}
        steps = {shape: (self._graph(shape), self._output(shape)) for shape in shapes}
        for done in range(num_rounds + 1):
            progress(f"round {done} of {num_rounds}", done, num_rounds + 1)
            for shape in random.Random(done).sample(shapes, len(shapes)):
                taken = self._seconds(*steps[shape])
                if done:
                    seconds[shape].append(taken)
        progress("done", num_rounds + 1, num_rounds + 1)
        return {
            shape: _step_time(steps[shape][0].bucket, shape, seconds[shape]) for shape in shapes
        }

    def _seconds(self, graph: CompiledGraph, output: SchedulerOutput) -> float:
        """Return the seconds of inputs, graph and sampling: what an engine's step takes."""
        start = time.perf_counter()
        self._runner.run_graph(graph, output)
        self._parts.graphs.sample(graph, [request.sampling for request in output.requests])
        return time.perf_counter() - start

    def _graph(self, shape: Shape) -> CompiledGraph:
        """Return the graph of exactly this size with the shortest context that fits."""
        buckets = self._plan.decode if shape.is_decode else self._plan.prefill
        need = shape.num_computed + shape.num_new
        fitting = [b for b in buckets if b.size == shape.size and b.context_len >= need]
        return self._parts.graphs.models[min(fitting, key=lambda bucket: bucket.context_len)]

    def _output(self, shape: Shape) -> SchedulerOutput:
        phase = Phase.DECODE if shape.is_decode else Phase.PREFILL
        return SchedulerOutput(phase, tuple(self._request(shape, i) for i in range(shape.num_seqs)))

    def _request(self, shape: Shape, index: int) -> ScheduledRequest:
        position = shape.num_computed + shape.num_new
        return ScheduledRequest(
            request_id=str(index),
            token_ids=[(7 * i + 13 * index + 1) % self._vocab_size for i in range(shape.num_new)],
            num_computed_tokens=shape.num_computed,
            block_tables=tuple(_table(g, shape, index) for g in self._parts.groups),
            sampling=SamplerRow(PARAMS, seed=0, position=position),
        )


def _live_blocks(group: KVGroup, num_computed: int, num_new: int) -> range:
    """Return the logical blocks that the new tokens of a request see, their own included."""
    end = num_blocks_for(num_computed + num_new, group.block_size)
    return range(group.first_live_block(num_computed), end)


def _table(group: KVGroup, shape: Shape, index: int) -> BlockTable:
    """Return blocks that no other request has; block 0 is nobody's."""
    blocks = _live_blocks(group, shape.num_computed, shape.num_new)
    first = 1 + index * len(blocks)
    return BlockTable(blocks.start, tuple(range(first, first + len(blocks))))


def _step_time(bucket: Bucket, shape: Shape, seconds: Sequence[float]) -> StepTime:
    middle = median(seconds)
    spread = 0.0
    if len(seconds) > 1:
        lower, _, upper = quantiles(seconds, n=4, method="inclusive")
        spread = (upper - lower) / middle
    return StepTime(
        graph=bucket.label,
        num_rows=shape.size,
        context=shape.context,
        seconds=middle,
        spread=spread,
        num_rounds=len(seconds),
        graph_context=bucket.context_len,
    )
