"""Workers of compiled sets as threads of this process, which fakes can reach."""

from __future__ import annotations

import threading
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import TimeoutExpired
from types import SimpleNamespace
from typing import cast

from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.graph_states import State
from noria.runtime.compiled_set.tracing import ListedGraph, Recipe
from noria.runtime.compiled_set.workers import SetCompiler

GRAPHS = ("prefill_t64_c64", "decode_s4_c64", "decode_s2_c64", "sampler_r4_greedy")


class ThreadProcess:
    """As far like a process as a worker needs; ends as killed where its target exits."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._returncode = 0
        self._thread.start()

    def wait(self, timeout: float) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise TimeoutExpired("a thread", timeout)
        return self._returncode

    def kill(self) -> None:
        """A thread ends with the connection."""

    def _run(self) -> None:
        try:
            worker.serve(self._connection)
        except SystemExit as end:
            self._returncode = int(str(end.code))
        finally:
            self._connection.close()


def start_thread(niceness: int) -> tuple[Connection, ThreadProcess]:
    """In place of ``worker.start_process``."""
    ours, theirs = Pipe()
    return ours, ThreadProcess(theirs)


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


def steer(tracer: type[FakeTracer], **acts: Callable[[], None]) -> None:
    """Let tracing these graphs do something first."""
    tracer.act = staticmethod(lambda name: acts.get(name, lambda: None)())


def compiler_of(path: Path, report: Callable[..., None] = lambda *now: None) -> SetCompiler:
    """Return a compiler of the set in ``path``, whose graphs are those of the tracer."""
    folder = SetFolder.prepare(path, key={"heads": 4}, num_blocks=[9])
    return SetCompiler(folder, cast(Recipe, SimpleNamespace()), report)


def states(compiler: SetCompiler) -> dict[str, State]:
    return {graph.name: graph.state for graph in compiler.graphs}
