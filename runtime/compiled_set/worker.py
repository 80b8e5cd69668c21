"""A process that traces the graphs it is handed, one at a time, and what it says.

It has no weights and writes no file. It ends with the process that started it.
"""

from __future__ import annotations

import re
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch

from ..errors import fault_text
from .tracing import ListedGraph, Recipe, Tracer

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
STOP_S = 10.0


@dataclass(frozen=True, slots=True)
class Ready:
    """The first thing that a worker says: the graphs of its recipe, in the order to trace them."""

    graphs: tuple[ListedGraph, ...]


@dataclass(frozen=True, slots=True)
class NotReady:
    """What a worker says instead, and ends."""

    error_text: str


@dataclass(frozen=True, slots=True)
class Traced:
    """A graph that the worker was handed.

    Attributes:
        data: its trace; None if that failed.
        error_text: all about the failure, in lines, the essential one first; else empty.
        seconds: what it took.
        peak_bytes: most memory of the worker's process meanwhile.
    """

    data: bytes | None
    error_text: str
    seconds: float
    peak_bytes: int


Message = Ready | NotReady | Traced


class Worker:
    """A spawned process with a tracer. Say ``stop`` in the end.

    Attributes:
        connection: where its messages come from; at its end, the process is gone.
    """

    def __init__(self, recipe: Recipe) -> None:
        """Start it; it says ``Ready`` some seconds later."""
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self._process = context.Process(target=serve, args=(recipe, other), daemon=True)
        resource_tracker.ensure_running()  # which the first start else does, and unblocks signals
        with _blocked_interrupts():  # for good in the worker: its starter decides what one means
            self._process.start()
        other.close()

    def hand(self, name: str) -> None:
        """Let it trace a graph, once it is ready and has said what became of the last one."""
        try:
            self.connection.send(name)
        except OSError:  # it is gone, which the end of the connection tells next
            return

    def wait_for_end(self) -> str:
        """Say how the process ended, after the end of its connection."""
        self._process.join(STOP_S)
        return _exit_text(self._process.exitcode)

    def stop(self) -> None:
        """End the process at once, whatever it does."""
        self.connection.close()
        self._process.kill()
        self._process.join(STOP_S)


def serve(recipe: Recipe, connection: Connection) -> None:
    """Trace what is asked for until the other end is closed."""
    try:
        torch.set_num_threads(1)
        try:
            tracer = Tracer(recipe)
        except Exception as error:
            connection.send(NotReady(f"{error}\n\n{traceback.format_exc()}"))
            return
        connection.send(Ready(tracer.graphs))
        while True:
            connection.send(_traced(tracer, connection.recv()))
    except (EOFError, OSError):
        return


def _traced(tracer: Tracer, name: str) -> Traced:
    _reset_peak()
    start = time.monotonic()
    data, error_text = None, ""
    try:
        data = tracer.trace(name)
    except Exception as error:
        error_text = f"{fault_text(error)}\n\n{traceback.format_exc()}"
    return Traced(data, error_text, time.monotonic() - start, peak_bytes())


def peak_bytes() -> int:
    """Return the most memory that this process had since ``_reset_peak``, or ever."""
    try:
        found = re.search(r"^VmHWM:\s*(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return getrusage(RUSAGE_SELF).ru_maxrss * unit


def _reset_peak() -> None:
    """Begin to measure anew, where the system can."""
    try:
        CLEAR_REFS.write_text(RESET_PEAK)
    except OSError:
        return


def _exit_text(exitcode: int | None) -> str:
    if exitcode is None:
        return "the worker closed its connection"
    if exitcode < 0:
        name = signal.Signals(-exitcode).name
        hint = " (a system short of memory does that; fewer workers need less)"
        return f"the worker was killed by {name}{hint if name == 'SIGKILL' else ''}"
    return f"the worker ended with status {exitcode}"


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
