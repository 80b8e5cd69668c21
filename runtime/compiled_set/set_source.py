"""Executables from a compiled set; what it lacks is compiled here, or refused."""

from __future__ import annotations

import logging

from ...kernels.kernel_set import KernelSet
from ..errors import SetError
from ..graph_source import CompileHere, EngineGraph, GraphSource, Run
from .folder import SetFolder
from .key import Key, key_differences

LOG = logging.getLogger(__name__)
NUM_SHOWN = 5
"""Fields of two keys that an error lists."""


def choose_source(
    folder: SetFolder, wanted: Key, kernels: KernelSet, *, may_compile: bool
) -> GraphSource:
    """Return where an engine's graphs come from: the set, or the compiler where it does not fit.

    Args:
        folder: the set.
        wanted: the key of the engine's graphs.
        kernels: of the target.
        may_compile: whether what the set lacks is compiled.

    Raises:
        SetError: the set is for another key, and nothing may compile; lists what differs.
    """
    differences = key_differences(folder.manifest.key, wanted)
    if not differences:
        return FromSet(folder, kernels, may_compile=may_compile)
    shown = "; ".join(differences[:NUM_SHOWN])
    more = len(differences) - NUM_SHOWN
    text = f"{folder.path} is a set for others: {shown}" + (f"; {more} more" if more > 0 else "")
    if not may_compile:
        raise SetError(f"{text}; nothing may be compiled: run noria compile")
    LOG.warning("%s; every graph is compiled now", text)
    return CompileHere(kernels)


class FromSet(GraphSource):
    """Loads what a set holds for exactly these graphs."""

    def __init__(self, folder: SetFolder, kernels: KernelSet, *, may_compile: bool) -> None:
        """Load with these kernels.

        Args:
            folder: a set whose key fits the engine.
            kernels: of the target.
            may_compile: compile what is missing or damaged, with a warning that names it.
        """
        self._folder = folder
        self._kernels = kernels
        self._compiler = CompileHere(kernels)
        self._may_compile = may_compile

    @property
    def num_compilations(self) -> int:
        """Graphs that the set did not give."""
        return self._compiler.num_compilations

    def will_load(self, name: str) -> bool:
        """Tell whether the set lists it as compiled; its file is looked at when it is loaded."""
        graph = self._folder.manifest.graphs.get(name)
        return graph is not None and graph.status == "done"

    def get(self, graph: EngineGraph) -> Run:
        """Load it.

        Raises:
            SetError: the set has no such graph, or its file is damaged, and nothing may compile.
        """
        try:
            return self._load(graph)
        except SetError as error:
            if not self._may_compile:
                raise SetError(f"{error}; nothing may be compiled: run noria compile") from error
            LOG.warning("%s; it is compiled now", error)
            return self._compiler.get(graph)

    def _load(self, graph: EngineGraph) -> Run:
        traced = self._folder.read(graph.name)
        where = f"{self._folder.path}: graph {graph.name}"
        differences = key_differences(self._folder.manifest.graphs[graph.name].key, graph.key)
        if differences:
            raise SetError(f"{where} is another: {differences[0]}")
        try:
            return self._kernels.load(traced, graph.module, graph.inputs, graph.outputs)
        except ValueError as error:
            raise SetError(f"{where} does not load: {error}") from error
