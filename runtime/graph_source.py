"""Where executables come from: compiled here, or loaded from what was compiled before."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from ..kernels.kernel_set import KernelSet
from .compiled_set.key import Key

Run = Callable[[], None]
"""Runs a graph once over its static buffers."""


@runtime_checkable
class RunsRows(Protocol):
    """An executable that need not compute the rows that nobody will look at."""

    def run_rows(self, num_rows: int) -> None:
        """Run once as far as the first rows need; the others may be left as they were."""


@dataclass(frozen=True, slots=True)
class EngineGraph:
    """A graph that an engine runs.

    Attributes:
        name: in its engine, fit for a file.
        key: what tells it from the other graphs of its engine.
        module: what is run.
        inputs: its argument list, (nested) static buffers.
        outputs: where its results go.
    """

    name: str
    key: Key
    module: nn.Module
    inputs: Sequence[object]
    outputs: Sequence[Tensor]


class GraphSource(Protocol):
    """Gives each graph of an engine its executable, by name."""

    @property
    @abstractmethod
    def num_compilations(self) -> int:
        """Graphs that were compiled in this process."""
        ...

    def will_load(self, name: str) -> bool:
        """Tell whether there is a graph of this name to load, so that ``get`` need not compile."""
        return False

    @abstractmethod
    def get(self, graph: EngineGraph) -> Run:
        """Return the executable of a graph over its very buffers, see ``KernelSet.compile``."""
        ...


class CompileHere(GraphSource):
    """Compiles every graph when it is asked for."""

    def __init__(self, kernels: KernelSet) -> None:
        """Compile with these kernels."""
        self._kernels = kernels
        self._num_compilations = 0

    @property
    def num_compilations(self) -> int:
        """Graphs that were asked for."""
        return self._num_compilations

    def get(self, graph: EngineGraph) -> Run:
        """Compile it."""
        self._num_compilations += 1
        return self._kernels.compile(graph.module, graph.inputs, graph.outputs)
