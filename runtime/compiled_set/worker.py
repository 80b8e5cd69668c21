"""A process that traces the graphs it is handed, one at a time, and what it says.

It is a plain Python process, in which nothing of the program that starts it runs: a script needs no
guard against being imported. It has no weights, writes no file and ends with its starter.
"""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from resource import RUSAGE_SELF, getrusage

import torch

from ..errors import SetError, fault_text
from .tracing import Recipe, Tracer

STATUS = Path("/proc/self/status")
CLEAR_REFS = Path("/proc/self/clear_refs")
RESET_PEAK = "5"
STOP_S = 10.0

# Imports find what the starter's do, and no module in the working directory before that is so.
# Then it watches for the starter's end, before the imports that take seconds: it waits for the
# other end of its connection to close, however that happens, and asks for nothing else.
PROGRAM = f"""
import sys
number, niceness = map(int, sys.argv[1:3])
sys.path[:] = sys.argv[3:]
import os, select, threading

def end_with_starter():
    poll = select.poll()
    poll.register(number, 0)
    poll.poll()
    os._exit(0)

threading.Thread(target=end_with_starter, daemon=True).start()
os.nice(niceness)
from {__name__} import be_worker
be_worker(number)
"""


@dataclass(frozen=True, slots=True)
class Ready:
    """The first thing that a worker says: it can be handed a graph."""


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
    """A process with a tracer. Say ``stop`` in the end.

    Attributes:
        connection: where its messages come from; at its end, the process is gone.
    """

    def __init__(self, recipe: Recipe, niceness: int = 0) -> None:
        """Start it; it says ``Ready`` some seconds later.

        Args:
            recipe: of the graphs that it will be handed.
            niceness: how far it stands back for others, see ``os.nice``.

        Raises:
            SetError: no process can be started.
        """
        self.connection, self._process = start_process(niceness)
        self._send(recipe)

    def hand(self, name: str) -> None:
        """Let it trace a graph, once it is ready and has said what became of the last one."""
        self._send(name)

    def wait_for_end(self) -> str:
        """Say how the process ended, after the end of its connection."""
        try:
            return _exit_text(self._process.wait(STOP_S))
        except subprocess.TimeoutExpired:
            return "the worker closed its connection"

    def stop(self) -> None:
        """End the process at once, whatever it does."""
        self.connection.close()
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)

    def _send(self, value: object) -> None:
        with suppress(OSError):  # it is gone, which the end of the connection tells next
            self.connection.send(value)


def start_process(niceness: int) -> tuple[Connection, subprocess.Popen[bytes]]:
    """Start a worker, which first waits for its recipe; return the way to it, and its process.

    Warnings and errors of the worker appear with those of this process. What is printed there
    does not: the output of this process may be read by a program.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        raise SetError(
            "no worker can start: this program is not run by a Python of its own, which workers "
            "need (sys.executable); compile the set by the command noria compile"
        )
    ours, theirs = socket.socketpair()
    with theirs:
        arguments = [str(theirs.fileno()), str(niceness), *sys.path]
        try:
            with _blocked_interrupts():  # for good in the worker: its starter knows what to do
                process = subprocess.Popen(
                    [sys.executable, "-c", PROGRAM, *arguments],
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
        except OSError as error:
            ours.close()
            raise SetError(f"no worker can start: {sys.executable}: {error.strerror}") from error
    return Connection(ours.detach()), process


def be_worker(number: int) -> None:
    """Be the process that ``start_process`` starts; ``number`` is its end of the connection."""
    serve(Connection(number))


def serve(connection: Connection) -> None:
    """Receive a recipe, then trace what is asked for until the other end is closed."""
    try:
        recipe: Recipe = connection.recv()
        torch.set_num_threads(1)
        try:
            tracer = Tracer(recipe)
        except Exception as error:
            connection.send(NotReady(f"{error}\n\n{traceback.format_exc()}"))
            return
        connection.send(Ready())
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


def _exit_text(exitcode: int) -> str:
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
