"""From a configuration to a warm engine: model, plan, cache, graphs, start-up check."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..bucketing import BucketPlan, FillPolicy
from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .assembly import assemble, build_model, kv_groups, limits_of, settle_memory
from .backends import load_kernels
from .compiled_set.folder import SetFolder
from .compiled_set.identity import set_identity, set_key
from .compiled_set.native_library import library_of
from .compiled_set.set_source import choose_source
from .config import Config
from .engine import Engine, EngineLimits
from .errors import ConfigError, ModelError, RequestError
from .graph_source import CompileHere, GraphSource
from .graphs import CompiledGraphs, Progress
from .kv_cache import CacheSize, KVCache, check_memory, size_cache, sized
from .kv_cache_dtype import cache_scales
from .kv_cache_manager import KVCacheManager
from .model_runner import ModelRunner
from .models.architecture import Architecture, expected_tensors
from .models.decoder import Decoder
from .models.kv_scales import KVScales
from .models.sources import LoadedModel, open_model
from .planning import bucket_plan
from .process_limits import free_memory_bytes, usable_cpus
from .request_texts import RequestTexts
from .sampling_state import check_bias
from .scheduler import Scheduler
from .scheduler_output import Phase
from .stopwatch import Stopwatch
from .warmup import InvarianceReport, warm_up

ROPE_BYTES = 4
"""Of one value of the rope table, which is float32."""
LOGIT_BYTES = 4
LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A warm engine, and what is known about it; ``seconds`` of each part of loading, in order."""

    engine: Engine
    runner: ModelRunner
    graphs: CompiledGraphs
    plan: BucketPlan
    source: LoadedModel
    model: Decoder
    cache: KVCache
    cache_size: CacheSize
    invariance: InvarianceReport
    seconds: Mapping[str, float]


def load_engine(config: Config, progress: Progress) -> LoadedEngine:
    """Load the model, compile every graph of the plan and run each once.

    Raises:
        NoriaError: the configuration and the model or this machine do not fit together.
    """
    watch = Stopwatch()
    folder = None if config.compiled is None else SetFolder.open(Path(config.compiled).expanduser())
    kernels = _kernels(config, folder)
    _set_num_threads(config.num_threads)
    source = open_model(config.model, tokenizer=config.tokenizer)
    check_model_len(config, source.architecture)
    check_weights_fit(config, source.architecture)
    check_logits_fit(config, source.architecture)
    check_default_sampling(config, source)
    _check_head_dim(config, source.architecture, kernels)
    plan = bucket_plan(config, limits_of(config, kernels))  # refused before weights are read
    watch.end("model and checks")
    scales = cache_scales(config, source)
    model = build_model(config, source.architecture, kernels, source.tensors, scales)
    watch.end("weights")
    cache_size = _cache_size(config, source.architecture, folder)
    groups = sized(kv_groups(config, source.architecture), cache_size)
    graphs = _graph_source(config, source.architecture, kernels, groups, scales, folder)
    parts = assemble(config, model, kernels, cache_size, graphs)
    watch.end("KV cache")
    parts.graphs.compile(plan, progress)
    watch.end("graphs")
    invariance = warm_up(
        parts.graphs, parts.cache, vocab_size=source.architecture.vocab_size, dtype=model.dtype
    )
    watch.end("warm-up")
    settle_memory(kernels)
    watch.end("rest of memory")
    if not invariance.is_invariant:
        LOG.warning("%s", invariance)
    runner = ModelRunner(plan, parts.graphs, parts.graphs.layout)
    return LoadedEngine(
        engine=_engine(config, source, plan, runner, parts.groups),
        runner=runner,
        graphs=parts.graphs,
        plan=plan,
        source=source,
        model=model,
        cache=parts.cache,
        cache_size=cache_size,
        invariance=invariance,
        seconds=watch.seconds,
    )


def check_model_len(config: Config, architecture: Architecture) -> None:
    """Refuse a ``max_model_len`` beyond the positions that the model and its rope reach."""
    if config.max_model_len > architecture.max_len:
        raise ConfigError(
            f"max_model_len: {config.max_model_len} exceeds the {architecture.max_len} positions "
            f"of the model (max_position_embeddings {architecture.max_position_embeddings}, and "
            "what its rope scaling makes of them)"
        )


def check_weights_fit(config: Config, architecture: Architecture) -> None:
    """Refuse a model that is larger than the memory that is free now, before anything is made.

    Counted are the weights in the configured dtype and the rope table, 4 bytes a value.
    """
    itemsize = getattr(torch, config.dtype).itemsize
    weights = sum(map(math.prod, expected_tensors(architecture).values())) * itemsize
    dims = sum(rope.rotary_dim(architecture.head_dim) for rope in architecture.ropes)
    table = config.max_model_len * dims * ROPE_BYTES
    free = free_memory_bytes()
    if weights + table > free:
        raise ConfigError(
            f"model: its weights in {config.dtype} and the rope table of max_model_len "
            f"{config.max_model_len} take {weights + table:,} bytes; {free:,} bytes of memory "
            "are free"
        )


def check_logits_fit(config: Config, architecture: Architecture) -> None:
    """Refuse as many requests as have no room for one row of logits each."""
    rows = max(config.max_num_seqs, config.max_num_prefill_seqs)
    logits = rows * architecture.vocab_size * LOGIT_BYTES
    free = free_memory_bytes()
    if logits > free:
        raise ConfigError(
            f"max_num_seqs: {config.max_num_seqs} rows of {architecture.vocab_size} logits take "
            f"{logits:,} bytes; {free:,} bytes of memory are free"
        )


def check_default_sampling(config: Config, source: LoadedModel) -> None:
    """Refuse settings under ``sampling`` that no request of this model can have.

    Raises:
        ConfigError: tokens that the model lacks, texts without a tokenizer, no valid grammar.
    """
    vocab_size = source.architecture.vocab_size
    end_token_ids = frozenset(source.eos_token_ids)
    texts = RequestTexts(
        source.tokenizer, vocab_size=vocab_size, end_token_ids=source.eos_token_ids
    )
    try:
        params = texts.read_params(config.sampling)
        check_bias(params, params.end_token_ids(end_token_ids), vocab_size)
        texts.constraint_maker(params)
    except RequestError as error:
        raise ConfigError(f"sampling.{error}") from None


def _check_head_dim(config: Config, architecture: Architecture, kernels: KernelSet) -> None:
    head_dim, multiple = architecture.head_dim, kernels.head_dim_multiple
    if head_dim % multiple:
        raise ModelError(
            f"model: head_dim is {head_dim}; backend {config.backend} runs multiples of "
            f"{multiple} only, and backend reference any even one"
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


def resolve_cache_size(
    config: Config, architecture: Architecture, *, reserved_bytes: int = 0
) -> CacheSize:
    """Find the numbers of blocks, once, and check that there is memory for them now.

    Args:
        config: with ``num_blocks``, or with what it follows from.
        architecture: of the model.
        reserved_bytes: memory that weights will take, where they are not read yet.

    Raises:
        ConfigError: there is too little memory.
    """
    groups = kv_groups(config, architecture)
    if config.num_blocks != "auto":
        size = CacheSize((config.num_blocks,) * len(groups), "as configured")
    else:
        size = size_cache(
            groups,
            max_num_seqs=config.max_num_seqs,
            max_model_len=config.max_model_len,
            max_query_len=config.num_batched_tokens_buckets[-1],
            memory_bytes=config.kv_cache_memory_bytes,
            reserved_bytes=reserved_bytes,
        )
    check_memory(size, groups, reserved_bytes)
    return size


def _cache_size(config: Config, architecture: Architecture, folder: SetFolder | None) -> CacheSize:
    """Return the numbers of blocks of the compiled set; they are resolved only without one."""
    groups = kv_groups(config, architecture)
    if folder is None or len(folder.manifest.num_blocks) != len(groups):
        return resolve_cache_size(config, architecture)
    size = CacheSize(folder.manifest.num_blocks, f"of the compiled set {folder.path}")
    check_memory(size, groups)
    return size


def _kernels(config: Config, folder: SetFolder | None) -> KernelSet:
    """Return the kernels of the configured backend, with the native library of the set."""
    library = None
    if folder is not None and config.backend == "cpu":
        from ..kernels.cpu.build import detect_instruction_set

        library = library_of(folder, detect_instruction_set().name)
    return load_kernels(config.backend, config.target, library=library)


def _graph_source(
    config: Config,
    architecture: Architecture,
    kernels: KernelSet,
    groups: tuple[KVGroup, ...],
    scales: tuple[KVScales, ...] | None,
    folder: SetFolder | None,
) -> GraphSource:
    if folder is None:
        return CompileHere(kernels)
    identity = set_identity(
        config, kernels, architecture=architecture, groups=groups, kv_scales=scales
    )
    may_compile = config.compile == "auto"
    return choose_source(folder, set_key(identity, kernels), kernels, may_compile=may_compile)


def _engine(
    config: Config,
    source: LoadedModel,
    plan: BucketPlan,
    runner: ModelRunner,
    groups: tuple[KVGroup, ...],
) -> Engine:
    kv_cache = KVCacheManager(groups, max_query_len=config.num_batched_tokens_buckets[-1])
    fill = FillPolicy(
        max_num_tokens=config.num_batched_tokens_buckets[-1],
        max_num_seqs=config.max_num_prefill_seqs,
        prefill_tile=runner.layout.prefill_tile,
    )
    policies = {Phase.PREFILL: fill}
    if plan.score:
        policies[Phase.SCORE] = replace(fill, max_num_tokens=plan.score[-1].num_tokens)
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
    )
