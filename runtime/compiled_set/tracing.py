"""Graphs of a configuration without weights: which there are, and their traces."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...bucketing import BucketPlan
from ...kernels.kernel_set import KernelSet
from ..assembly import assemble, build_model, limits_of, tensors_without_memory
from ..backends import load_kernels
from ..config import Config
from ..errors import SetError
from ..graph_source import EngineGraph, GraphSource, Run
from ..kv_cache import CacheSize, KVCache
from ..models.architecture import Architecture
from ..models.kv_scales import KVScales
from ..planning import bucket_plan
from ..scheduler_output import Phase
from .key import Key

MODEL_KINDS = frozenset(phase.value for phase in Phase)
"""Of graphs that run the model: by far the largest."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """What graphs are made from, weights excepted; passes from process to process.

    Attributes:
        config: of the engine.
        architecture: of its model.
        kv_scales: of each layer's cache; None for a cache that has none.
        num_blocks: of each KV group.
    """

    config: Config
    architecture: Architecture
    kv_scales: tuple[KVScales, ...] | None
    num_blocks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ListedGraph:
    """A graph that a set has.

    Attributes:
        name: in its engine, and of its file.
        key: what tells it from the other graphs of its set.
        num_tensors: how many tensors it reads, which says how much there is to trace.
    """

    name: str
    key: Key
    num_tensors: int


@dataclass(frozen=True, slots=True)
class RecordedGraphs:
    """All graphs of a recipe, none compiled, and what they run over."""

    plan: BucketPlan
    cache: KVCache
    graphs: Mapping[str, EngineGraph]


def record_graphs(recipe: Recipe, kernels: KernelSet) -> RecordedGraphs:
    """Build the model without weights and find all its graphs, with kernels ``for_tracing``."""
    config = recipe.config
    tensors = tensors_without_memory(recipe.architecture, getattr(torch, config.dtype))
    model = build_model(config, recipe.architecture, kernels, tensors, recipe.kv_scales)
    found = _Recorder()
    size = CacheSize(recipe.num_blocks, "of the set")
    plan = bucket_plan(config, limits_of(config, kernels))
    parts = assemble(config, model, kernels, size, found, plan=plan)
    parts.graphs.compile(_no_progress)
    return RecordedGraphs(plan, parts.cache, found.graphs)


class Tracer:
    """Traces graphs of a recipe, one at a time, on the device meta."""

    def __init__(self, recipe: Recipe) -> None:
        """Build the model without weights and find all its graphs; traces none yet.

        Raises:
            NoriaError: the target cannot run here.
        """
        config = recipe.config
        self._kernels = load_kernels(config.backend, config.target).for_tracing()
        self._found = record_graphs(recipe, self._kernels)

    @property
    def graphs(self) -> tuple[ListedGraph, ...]:
        """All graphs: the limit graphs of the plan, the small ones, the plan's others in order.

        An engine can run any request with what comes before the others.
        """
        limits = {bucket.label for bucket in self._found.plan.limits}

        def place(graph: ListedGraph) -> int:
            if graph.key["kind"] not in MODEL_KINDS:
                return 1
            return 0 if graph.name in limits else 2

        found = self._found.graphs.items()
        listed = [ListedGraph(name, one.key, _num_tensors(one.inputs)) for name, one in found]
        return tuple(sorted(listed, key=place))

    def trace(self, name: str) -> bytes:
        """Return the trace of a graph, see ``KernelSet.trace``.

        Raises:
            SetError: there is none of this name.
        """
        if name not in self._found.graphs:
            raise SetError(f"the configuration has no graph {name}")
        one = self._found.graphs[name]
        return self._kernels.trace(one.module, one.inputs, one.outputs)


def list_graphs(recipe: Recipe) -> tuple[ListedGraph, ...]:
    """Return all graphs of a recipe in the order to trace them, see ``Tracer``; takes a moment."""
    return Tracer(recipe).graphs


class _Recorder(GraphSource):
    """Notes the graphs that are asked for and compiles none."""

    num_compilations = 0

    def __init__(self) -> None:
        self.graphs: dict[str, EngineGraph] = {}

    def get(self, graph: EngineGraph) -> Run:
        self.graphs[graph.name] = graph
        return _never_run


def _num_tensors(value: object) -> int:
    """Count the tensors of nested arguments."""
    if isinstance(value, Tensor):
        return 1
    parts = value.values() if isinstance(value, Mapping) else value
    assert isinstance(parts, Iterable)
    return sum(map(_num_tensors, parts))


def _no_progress(label: str, num_done: int, total: int) -> None:
    """Say nothing: listing takes a moment."""


def _never_run() -> None:
    raise AssertionError("graphs without memory are never run")
