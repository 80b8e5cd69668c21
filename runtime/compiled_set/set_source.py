"""Executables from a compiled set; what it lacks is compiled here, or refused."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence

from ...kernels.kernel_set import KernelSet
from ..errors import SetError
from ..graph_source import CompileHere, EngineGraph, GraphSource, Run
from .folder import SetFolder
from .key import Key, key_differences
from .writable_set import WritableSet

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
        return _is_listed(self._folder, name)

    def get(self, graph: EngineGraph) -> Run:
        """Load it.

        Raises:
            SetError: the set has no such graph, or its file is damaged, and nothing may compile.
        """
        try:
            return _load(self._folder, graph, self._kernels)
        except SetError as error:
            if not self._may_compile:
                raise SetError(f"{error}; nothing may be compiled: run noria compile") from error
            LOG.warning("%s; it is compiled now", error)
            return self._compiler.get(graph)


class FromLocalSet(GraphSource):
    """Loads what a local set holds, and adds to it what it lacks.

    Attributes:
        store: the set, whose key fits the engine.
        may_compile: whether a graph that is not there is compiled; else asking for it is an error.
    """

    def __init__(self, store: WritableSet, kernels: KernelSet) -> None:
        """Load and compile with these kernels."""
        self.store = store
        self.may_compile = True
        self._kernels = kernels
        self._num_compilations = 0

    @property
    def num_compilations(self) -> int:
        """Graphs that were compiled in this process."""
        return self._num_compilations

    def will_load(self, name: str) -> bool:
        """Tell whether the set lists it as compiled; its file is looked at when it is loaded."""
        return _is_listed(self.store, name)

    def get(self, graph: EngineGraph) -> Run:
        """Load it, or compile it and put it into the set.

        Raises:
            SetError: it is not there, and nothing may compile.
        """
        try:
            return _load(self.store, graph, self._kernels)
        except SetError as error:
            if not self.may_compile:
                raise
            self._warn(graph.name, error)
            return self._compile(graph)

    def lacking(self, listed: Mapping[str, Key]) -> list[str]:
        """Return the names of those graphs that are missing or damaged, given names and keys."""
        return [name for name, key in listed.items() if not self.store.has(name, key)]

    def leave_to_others(self, listed: Mapping[str, Key]) -> None:
        """Warn of those of these graphs that others are to compile although the set has them."""
        for name in self.lacking(listed):
            try:
                self.store.read(name)
            except SetError as error:
                self._warn(name, error)

    def _warn(self, name: str, error: SetError) -> None:
        """Say what is wrong with a graph that was there; that one was never there is no news."""
        if name in self.store.manifest.graphs:
            LOG.warning("%s; it is compiled again", error)

    def _compile(self, graph: EngineGraph) -> Run:
        start = time.monotonic()
        data = self._kernels.trace(graph.module, graph.inputs, graph.outputs)
        seconds = time.monotonic() - start
        self._num_compilations += 1
        self.store.publish(graph.name, data, key=graph.key, seconds=seconds, peak_bytes=0)
        return self._kernels.load(data, graph.module, graph.inputs, graph.outputs)


def _is_listed(store: WritableSet, name: str) -> bool:
    graph = store.manifest.graphs.get(name)
    return graph is not None and graph.status == "done"


def _load(store: WritableSet, graph: EngineGraph, kernels: KernelSet) -> Run:
    """Return the executable that a set has for exactly this graph.

    Raises:
        SetError: it has none, or not this one, or its file is damaged.
    """
    traced = store.read(graph.name)
    where = f"{store.path}: graph {graph.name}"
    differences: Sequence[str] = key_differences(store.manifest.graphs[graph.name].key, graph.key)
    if differences:
        raise SetError(f"{where} is another: {differences[0]}")
    try:
        return kernels.load(traced, graph.module, graph.inputs, graph.outputs)
    except ValueError as error:
        raise SetError(f"{where} does not load: {error}") from error
