"""A model, its caches and its graphs, put together as a configuration says.

The kernels decide what memory they take: those of a target all of it, those of ``for_tracing``
none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..bucketing import BucketPlan, PlanLimits
from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .config import Config
from .errors import BackendError
from .graph_source import GraphSource
from .graphs import CompiledGraphs
from .kv_cache import CacheSize, KVCache, decoder_groups, sized
from .kv_cache_dtype import cache_dtype
from .models.architecture import Architecture, expected_tensors
from .models.decoder import Decoder
from .models.kv_scales import KVScales
from .planning import graph_layout, plan_limits


def kv_groups(config: Config, architecture: Architecture) -> tuple[KVGroup, ...]:
    """Return the KV groups of a configuration, whose numbers of blocks are still to be found."""
    return decoder_groups(architecture, block_size=config.block_size, dtype=cache_dtype(config))


def build_model(
    config: Config,
    architecture: Architecture,
    kernels: KernelSet,
    tensors: Mapping[str, Tensor],
    kv_scales: tuple[KVScales, ...] | None,
) -> Decoder:
    """Pack the weights of a model.

    Raises:
        BackendError: there is not enough memory.
    """
    with _memory_for("the weights", "take a smaller model or dtype: bfloat16"):
        return Decoder(
            architecture,
            kernels,
            tensors,
            dtype=getattr(torch, config.dtype),
            max_model_len=config.max_model_len,
            kv_scales=kv_scales,
        )


@dataclass(frozen=True, slots=True)
class Assembly:
    """Graphs that are there or can be asked for, and what they run over."""

    groups: tuple[KVGroup, ...]
    cache: KVCache
    graphs: CompiledGraphs


def assemble(
    config: Config,
    model: Decoder,
    kernels: KernelSet,
    size: CacheSize,
    source: GraphSource,
    *,
    plan: BucketPlan,
) -> Assembly:
    """Make the caches, and graphs that ask ``source`` for their executables; compile nothing yet.

    Raises:
        BackendError: there is not enough memory.
    """
    architecture = model.architecture
    groups = sized(kv_groups(config, architecture), size)
    with _memory_for("the KV cache", "lower num_blocks or kv_cache_memory"):
        cache = KVCache(groups, kernels)
    graphs = CompiledGraphs(
        model,
        kernels,
        cache,
        plan=plan,
        layout=graph_layout(config, kernels, groups, has_experts=architecture.has_experts),
        sampler_features=config.sampler_features,
        max_logprobs=config.max_logprobs,
        source=source,
    )
    return Assembly(groups, cache, graphs)


def settle_memory(kernels: KernelSet) -> None:
    """Wait until all memory of an engine is there: caches, buffers, weights.

    Raises:
        BackendError: there is not enough.
    """
    with _memory_for("the engine", "lower num_blocks, kv_cache_memory or max_num_batched_tokens"):
        kernels.settle()


def limits_of(config: Config, kernels: KernelSet) -> PlanLimits:
    """Return the limits of a configuration with the alignment of these kernels."""
    return plan_limits(config, prefill_tile=kernels.prefill_tile, fold_blocks=kernels.fold_blocks)


def tensors_without_memory(architecture: Architecture, dtype: torch.dtype) -> Mapping[str, Tensor]:
    """Return the tensors that a model needs, on the device meta."""
    shapes = expected_tensors(architecture)
    return {name: torch.empty(shape, dtype=dtype, device="meta") for name, shape in shapes.items()}


@contextmanager
def _memory_for(what: str, remedy: str) -> Iterator[None]:
    try:
        yield
    except MemoryError as error:
        raise BackendError(f"not enough memory for {what}: {error}; {remedy}") from error
