"""A process that compiles a set with a slow stub in place of the tracer, which logs its calls.

    python stub_compiler.py PATH LOG ACT

Prints ``ready``, waits for a line on stdin, compiles, and prints the states of the graphs. LOG gets
a line for each graph that is traced, ``PID NAME``. ACT is ``work``; or ``hang NAME``, to go on for
ever with this graph; or ``hold NAME``, to go on with it until there is a file LOG.go_on.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import cast

from small_sets import begin
from thread_workers import FakeTracer, start_thread

from noria.runtime.compiled_set import worker, workers
from noria.runtime.compiled_set.tracing import ListedGraph, Recipe
from noria.runtime.compiled_set.workers import SetCompiler

GRAPHS = tuple(f"decode_s{size}_c64" for size in range(12, 0, -1))
SECONDS = 0.03


class LoggingTracer(FakeTracer):
    """Traces to texts, slowly."""

    def __init__(self, recipe: Recipe) -> None:
        self.graphs = tuple(ListedGraph(name, {"kind": name}, 1) for name in GRAPHS)

    def trace(self, name: str) -> bytes:
        log, act = sys.argv[2:]
        with open(log, "a") as file:
            file.write(f"{os.getpid()} {name}\n")
        time.sleep(1000 if act == f"hang {name}" else SECONDS)
        while act == f"hold {name}" and not Path(f"{log}.go_on").exists():
            time.sleep(SECONDS)
        return f"trace of {name}\n".encode() * 1000


def main() -> None:
    vars(worker)["start_process"] = start_thread
    vars(worker)["Tracer"] = LoggingTracer
    vars(os)["fsync"] = lambda number: None
    vars(workers)["list_graphs"] = lambda recipe: LoggingTracer(recipe).graphs
    print("ready", flush=True)
    sys.stdin.readline()
    recipe = cast(Recipe, SimpleNamespace())
    compiler = SetCompiler(begin(Path(sys.argv[1])), recipe, lambda *now: None)
    compiler.run(2)
    print(*(graph.state for graph in compiler.graphs))


if __name__ == "__main__":
    main()
