"""Workers of compiled sets as threads of this process, which fakes can reach."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from noria.runtime.compiled_set.tracing import ListedGraph, Recipe

GRAPHS = ("prefill_t64_c64", "decode_s4_c64", "decode_s2_c64", "sampler_r4_greedy")


class ThreadProcess:
    """As far like a process as a worker needs; ends as killed where its target exits."""

    def __init__(
        self, *, target: Callable[..., None], args: tuple[Recipe, Connection], daemon: bool
    ) -> None:
        recipe, connection = args
        self._connection = Connection(os.dup(connection.fileno()))
        self._thread = threading.Thread(target=self._run, args=(target, recipe), daemon=daemon)
        self.exitcode: int | None = None
        self.start, self.join, self.is_alive = (
            self._thread.start,
            self._thread.join,
            self._thread.is_alive,
        )

    def _run(self, target: Callable[..., None], recipe: Recipe) -> None:
        try:
            target(recipe, self._connection)
            self.exitcode = 0
        except SystemExit as end:
            self.exitcode = int(str(end.code))
        finally:
            self._connection.close()

    def kill(self) -> None:
        """A thread ends with the connection."""


class ThreadContext:
    """In place of what ``multiprocessing.get_context`` returns."""

    Pipe = staticmethod(Pipe)
    Process = ThreadProcess


class FakeTracer:
    """Traces graphs to their names, in whatever way a test wants it.

    ``traced`` collects the names; ``act`` is called with each before it is traced.
    """

    traced: list[str]
    act: Callable[[str], None]

    def __init__(self, recipe: Recipe) -> None:
        sizes = range(len(GRAPHS), 0, -1)
        self.graphs = tuple(
            ListedGraph(name, {"kind": name}, size)
            for name, size in zip(GRAPHS, sizes, strict=True)
        )

    def trace(self, name: str) -> bytes:
        self.traced.append(name)
        type(self).act(name)
        return f"trace of {name}".encode()
