"""The graphs of a configuration, each captured for the backend `neuron` and proved."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ...kernels.neuron.generations import NATIVE_GENERATIONS, old_generation_text
from ...kernels.neuron.target import NeuronKernels
from ..assembly import kv_groups
from ..compiled_set.tracing import Recipe, record_graphs
from ..config import Config, parse_config
from ..errors import BackendError, ConfigError
from ..graph_source import EngineGraph
from ..kv_cache import KVCache, size_cache
from ..models.architecture import Architecture
from ..models.sizes import read_sizes_of
from .capture import Capture, capture
from .operator_table import STATES, operator_table
from .proof import GraphProof, Violation, prove, rules_for

BACKEND = "neuron"
DEFAULT_TARGET = NATIVE_GENERATIONS[0]
ANY_MEMORY = 2**62
"""Bytes: the caches of a proof take none, so that they are as large as full use asks for."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ConfigurationProof:
    """All graphs of a configuration.

    Attributes:
        config: as it was proved, its backend being `neuron`.
        num_blocks: of each KV group.
        graphs: in the order in which an engine makes them.
    """

    config: Config
    num_blocks: tuple[int, ...]
    graphs: tuple[GraphProof, ...]

    @property
    def violations(self) -> tuple[Violation, ...]:
        """Those of all graphs."""
        return tuple(one for graph in self.graphs for one in graph.violations)

    @property
    def operators(self) -> tuple[str, ...]:
        """The distinct operators of all graphs, sorted."""
        return tuple(sorted({one for graph in self.graphs for one in graph.operators}))

    @property
    def operator_counts(self) -> Mapping[str, int]:
        """How many operators are in each state."""
        return operator_table().counts(self.operators)

    @property
    def unverified(self) -> tuple[str, ...]:
        """The operators for which there is no evidence."""
        table = operator_table()
        return tuple(one for one in self.operators if table.state(one) in (None, STATES[-1]))


def prove_configuration(config: Config, progress: Progress) -> ConfigurationProof:
    """Capture and prove every graph; reads the model's configuration, no weights.

    Raises:
        ConfigError: the backend does not take the configuration's shapes.
        BackendError: its device generation runs nothing.
        ModelError: the model's configuration is not there.
    """
    config = for_neuron(config)
    architecture = read_sizes_of(config.model)
    target = config.target or DEFAULT_TARGET
    num_blocks = _num_blocks(config, architecture)
    kernels = NeuronKernels(target).for_tracing()
    recorded = record_graphs(Recipe(config, architecture, None, num_blocks), kernels)
    rules, proofs = rules_for(target), []
    for index, graph in enumerate(recorded.graphs.values()):
        progress(graph.name, index, len(recorded.graphs))
        proofs.append(prove(_capture(graph, recorded.cache), rules))
    progress("done", len(proofs), len(proofs))
    return ConfigurationProof(config, num_blocks, tuple(proofs))


def for_neuron(config: Config) -> Config:
    """Return the configuration as one of the backend `neuron`, which it may not name.

    Raises:
        ConfigError: that backend does not take its shapes.
        BackendError: its device generation runs nothing.
    """
    if config.target is not None and config.target not in NATIVE_GENERATIONS:
        raise BackendError(f"target: {config.target}: {old_generation_text(config.target)}")
    if config.backend == BACKEND:
        return config
    target = config.target or DEFAULT_TARGET
    try:
        return parse_config(config.to_mapping() | {"backend": BACKEND, "target": target})
    except ConfigError as error:
        raise ConfigError(f"as backend: {BACKEND}, target: {target}: {error}") from error


def _num_blocks(config: Config, architecture: Architecture) -> tuple[int, ...]:
    """Return the blocks of each group; ``auto`` never looks at this machine's memory."""
    groups = kv_groups(config, architecture)
    if config.num_blocks != "auto":
        return (config.num_blocks,) * len(groups)
    size = size_cache(
        groups,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        max_query_len=config.num_batched_tokens_buckets[-1],
        memory_bytes=config.kv_cache_memory_bytes or ANY_MEMORY,
    )
    return size.num_blocks


def _capture(graph: EngineGraph, cache: KVCache) -> Capture:
    return capture(graph.name, graph.module, graph.inputs, [*cache.keys, *cache.values])
