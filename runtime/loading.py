"""From a configuration to a warm engine: model, plan, cache, graphs, start-up check."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from ..bucketing import BucketPlan, FillPolicy, PlanLimits, StepPolicy
from ..bucketing.traces.counted_engine import CountedEngine
from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .arrivals import Arrivals
from .assembly import Assembly, assemble, build_model, kv_groups, limits_of, settle_memory
from .backends import load_kernels
from .block_counts import cache_size_of
from .compiled_set.folder import SetFolder
from .compiled_set.local_set import LocalSet
from .compiled_set.native_library import library_of
from .config import Config
from .counted_engine import engine_of
from .engine import Engine, EngineLimits
from .engine_start import choose_start
from .errors import ConfigError
from .graphs import CompiledGraphs, Progress
from .kv_cache import CacheSize, KVCache, sized
from .kv_cache_dtype import cache_scales
from .kv_cache_manager import KVCacheManager
from .model_checks import (
    check_cache_dtype,
    check_default_sampling,
    check_head_dim,
    check_logits_fit,
    check_model_len,
    check_weights_fit,
)
from .model_runner import ModelRunner
from .models.decoder import Decoder
from .models.locations import expanded_path
from .models.sources import LoadedModel, open_model
from .planning import bucket_plan, step_policy
from .process_limits import usable_cpus
from .scheduler import Scheduler
from .scheduler_output import Phase
from .stopwatch import Stopwatch
from .warmup import InvarianceReport, WarmUp

LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A warm engine, and what is known about it; ``seconds`` of each part of loading, in order.

    Its counters are those of ``counted``.
    """

    engine: Engine
    runner: ModelRunner
    graphs: CompiledGraphs
    plan: BucketPlan
    source: LoadedModel
    model: Decoder
    cache: KVCache
    cache_size: CacheSize
    warm_up: WarmUp
    arrivals: Arrivals
    local_set: LocalSet | None
    counted: CountedEngine
    seconds: Mapping[str, float]

    @property
    def invariance(self) -> InvarianceReport:
        """Whether the graphs that are there give the same bits."""
        return self.warm_up.report


def load_engine(config: Config, progress: Progress) -> LoadedEngine:
    """Load the model, and make and run once each graph with which serving begins.

    Raises:
        NoriaError: the configuration and the model or this machine do not fit together.
    """
    watch = Stopwatch()
    folder = None
    if config.compiled is not None:
        folder = SetFolder.open(expanded_path("compiled", config.compiled))
    kernels = _kernels(config, folder)
    _set_num_threads(config.num_threads)
    source = _checked_model(config, kernels)
    limits = limits_of(config, kernels)
    plan = bucket_plan(config, limits)  # refused before weights are read
    watch.end("model and checks")
    scales = cache_scales(config, source)
    model = build_model(config, source.architecture, kernels, source.tensors, scales)
    watch.end("weights")
    cache_size = cache_size_of(config, source.architecture, folder)
    start = choose_start(
        config,
        source.architecture,
        kernels,
        groups=sized(kv_groups(config, source.architecture), cache_size),
        kv_scales=scales,
        folder=folder,
    )
    parts = assemble(config, model, kernels, cache_size, start.source, plan=plan)
    watch.end("KV cache")
    warm_up = _warm_up(parts, plan, model)
    start.compile(parts.graphs, warm_up, progress)
    watch.end("graphs")
    start.check(parts.graphs, warm_up)
    watch.end("warm-up")
    settle_memory(kernels)
    watch.end("rest of memory")
    if not warm_up.report.is_invariant:
        LOG.warning("%s", warm_up.report)
    runner = ModelRunner(plan.restricted_to(parts.graphs.models), parts.graphs, parts.graphs.layout)
    arrivals = start.arrivals(parts.graphs, warm_up=warm_up, runner=runner)
    engine = _engine(
        config, source, runner, parts.groups, _policies(config, plan, limits), arrivals
    )
    arrivals.start()
    return LoadedEngine(
        engine=engine,
        runner=runner,
        graphs=parts.graphs,
        plan=plan,
        source=source,
        model=model,
        cache=parts.cache,
        cache_size=cache_size,
        warm_up=warm_up,
        arrivals=arrivals,
        local_set=start.local_set,
        counted=engine_of(config, source.architecture),
        seconds=watch.seconds,
    )


def _checked_model(config: Config, kernels: KernelSet) -> LoadedModel:
    """Open the model, and refuse what it or this machine's memory does not allow."""
    source = open_model(config.model, tokenizer=config.tokenizer)
    check_model_len(config, source.architecture)
    check_weights_fit(config, source.architecture)
    check_logits_fit(config, source.architecture)
    check_default_sampling(config, source)
    check_head_dim(config, source.architecture, kernels)
    check_cache_dtype(config)
    return source


def _warm_up(parts: Assembly, plan: BucketPlan, model: Decoder) -> WarmUp:
    return WarmUp(
        parts.graphs,
        parts.cache,
        plan.buckets,
        vocab_size=model.architecture.vocab_size,
        dtype=model.dtype,
    )


def _set_num_threads(num_threads: int | None) -> None:
    if num_threads is None:
        return
    num_cpus = usable_cpus()
    if num_threads > num_cpus:
        raise ConfigError(
            f"num_threads: {num_threads} exceeds the {num_cpus} CPUs that this process may use; "
            f"threads without a CPU make every step wait"
        )
    torch.set_num_threads(num_threads)


def _kernels(config: Config, folder: SetFolder | None) -> KernelSet:
    """Return the kernels of the configured backend, with the native library of the set."""
    library = None
    if folder is not None and config.backend == "cpu":
        from ..kernels.cpu.build import detect_instruction_set

        may_build = config.compile == "auto"
        library = library_of(folder, detect_instruction_set().name, may_build=may_build)
    return load_kernels(config.backend, config.target, library=library)


def _policies(config: Config, plan: BucketPlan, limits: PlanLimits) -> Mapping[Phase, StepPolicy]:
    """Return how prompts fill a step: those that are scored fill the score graph."""
    policies = {Phase.PREFILL: step_policy(config, limits)}
    if plan.score:
        policies[Phase.SCORE] = FillPolicy.of(limits, plan.score[-1].num_tokens)
    return policies


def _engine(
    config: Config,
    source: LoadedModel,
    runner: ModelRunner,
    groups: tuple[KVGroup, ...],
    policies: Mapping[Phase, StepPolicy],
    arrivals: Arrivals,
) -> Engine:
    # A prompt that is scored runs in smaller steps, never in larger ones.
    kv_cache = KVCacheManager(groups, max_query_len=config.num_batched_tokens_buckets[-1])
    scheduler = Scheduler(kv_cache, policies, max_num_seqs=config.max_num_seqs)
    limits = EngineLimits(
        vocab_size=source.architecture.vocab_size,
        max_model_len=config.max_model_len,
        sampler_features=frozenset(config.sampler_features),
        max_logprobs=config.max_logprobs,
        has_priorities=config.scheduling_policy == "priority",
    )
    return Engine(
        scheduler,
        runner,
        kv_cache,
        limits=limits,
        end_token_ids=frozenset(source.eos_token_ids),
        seed=config.seed,
        arrivals=arrivals,
    )
