"""Compiling a set: worker processes trace its graphs, this one hands them out and publishes."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Protocol

from ..errors import SetError
from .claims import Release, claimant
from .graph_states import GraphState, Report, State
from .key import key_digest
from .manifest import GraphEntry, Manifest
from .tracing import Recipe, list_graphs
from .worker import Message, NotReady, Traced, Worker
from .writable_set import WritableSet

LOG = logging.getLogger(__name__)
POLL_S = 0.2
"""Between two looks for what no worker tells."""

WAITS_UNTOLD = 50
"""Such looks, with nothing to do here, until a warning says who is waited for."""

WANTED = "graphs"
"""Fact of a set: the names of all graphs of the configuration that was compiled last."""


class Tracing(Protocol):
    """What is asked of a worker, see ``Worker``."""

    connection: Connection

    def hand(self, name: str) -> None:
        """Let it trace a graph."""

    def wait_for_end(self) -> str:
        """Say how it ended, after the end of its connection."""

    def stop(self) -> None:
        """End it at once."""


StartWorker = Callable[[Recipe], Tracing]


class SetCompiler:
    """Compiles what a set lacks, with workers that are restarted when the system kills them.

    A graph that fails, or whose worker is killed, is noted in the set and does not stop the rest.
    Others may compile the same set. Each claims a graph before it is traced, so that no two trace
    the same; what others have claimed is waited for, and compiled here if they die.

    Attributes:
        graphs: of the recipe, in the order of work.
        num_workers: most that there were at once.
    """

    def __init__(
        self, folder: WritableSet, recipe: Recipe, report: Report, start: StartWorker = Worker
    ) -> None:
        """Find which graphs there are.

        Args:
            folder: the set.
            recipe: of its graphs.
            report: is told of every change, by the thread that runs this.
            start: makes a worker.

        Raises:
            NoriaError: the target cannot run here.
        """
        listed = list_graphs(recipe)
        self.graphs = [GraphState(one.name, one.key, one.num_tensors) for one in listed]
        self.num_workers = 0
        self._folder = folder
        self._recipe = recipe
        self._report = report
        self._start = start
        self._workers: dict[Connection, Tracing] = {}
        self._in_work: dict[Connection, GraphState] = {}
        self._claims: dict[str, Release] = {}
        self._at_first: Mapping[str, GraphEntry] = {}
        self._num_allowed = 0
        self._num_waits = 0
        self._is_stopped = threading.Event()

    def run(self, num_workers: int) -> None:
        """Compile all that is missing; what failed is in ``graphs`` and in the set.

        Nothing that is in the set is compiled again; if all is, no worker starts. However this
        ends, the workers end, and what was published stays.

        Args:
            num_workers: at most; none is started without a graph to compile.

        Raises:
            SetError: the set cannot be written, or no worker can start.
        """
        self._num_allowed = num_workers
        try:
            self._note_what_is_there()
            while not self._is_stopped.is_set():
                self._add_workers()
                if not self._workers and not self._waiting:
                    break
                self._listen()
        finally:
            self._end()

    def stop(self) -> None:
        """Let ``run`` return soon, whatever is in work; any thread may say so, at any time."""
        self._is_stopped.set()

    @property
    def _waiting(self) -> list[GraphState]:
        """Graphs that nobody here compiles, and that were not there when that was last seen."""
        is_here = {graph.name for graph in self._in_work.values()}
        return [g for g in self.graphs if g.state is State.WAITING and g.name not in is_here]

    def _add_workers(self) -> None:
        """Start as many workers as are allowed and find work."""
        while len(self._workers) < self._num_allowed and not self._is_stopped.is_set():
            graph = self._claim_next()
            if graph is None:
                break
            worker = self._start(self._recipe)
            self._workers[worker.connection] = worker
            self._in_work[worker.connection] = graph
        self.num_workers = max(self.num_workers, len(self._workers))
        self._report(self.graphs, len(self._workers))

    def _listen(self) -> None:
        """Do what workers say; without any, others have claimed all that is left: let them."""
        if not self._workers:
            self._is_stopped.wait(POLL_S)
            self._say_who_is_waited_for()
            return
        for connection in wait([*self._workers], POLL_S):
            assert isinstance(connection, Connection)
            self._receive(connection)
            self._report(self.graphs, len(self._workers))

    def _say_who_is_waited_for(self) -> None:
        """Say it once, when it takes long: it may have been stopped."""
        self._num_waits += 1
        waiting = self._waiting
        if self._num_waits != WAITS_UNTOLD or not waiting:
            return
        name = waiting[0].name
        more = f" and {len(waiting) - 1} more" if len(waiting) > 1 else ""
        who = claimant(self._folder.path, name)
        LOG.warning("waiting for %s%s, which %s compiles", name, more, who)

    def _claim_next(self) -> GraphState | None:
        """Claim the next graph that is not there; None if others have claimed all that is left."""
        for graph in self._waiting:
            release = self._folder.claim(graph.name)
            if release is None:
                continue
            self._claims[graph.name] = release
            with self._folder.locked():  # shows what others have published
                self._note_if_ended(graph)
            if graph.state is State.WAITING:
                return graph
            self._release(graph)
        return None

    def _release(self, graph: GraphState) -> None:
        self._claims.pop(graph.name)()

    def _receive(self, connection: Connection) -> None:
        try:
            message: Message = connection.recv()
        except (EOFError, OSError):
            self._bury(connection)
            return
        if isinstance(message, NotReady):
            raise SetError(f"no worker can start: {message.error_text.splitlines()[0]}")
        if isinstance(message, Traced):
            self._publish(self._in_work[connection], message)
            self._release(self._in_work.pop(connection))
            following = self._claim_next()
            if following is None:
                self._workers.pop(connection).stop()
                return
            self._in_work[connection] = following
        graph = self._in_work[connection]
        graph.state, graph.since = State.COMPILING, time.monotonic()
        self._workers[connection].hand(graph.name)

    def _note_what_is_there(self) -> None:
        """Note it, and in the set which graphs it is to have; of a complete set, write nothing."""
        if self._is_complete():
            return
        names = [graph.name for graph in self.graphs]
        with self._folder.locked():
            if self._folder.manifest.facts.get(WANTED) != names:
                self._folder.record({WANTED: names})
            self._at_first = self._folder.manifest.graphs
            for graph in self.graphs:
                self._note_if_ended(graph)

    def _is_complete(self) -> bool:
        self._at_first = self._folder.manifest.graphs
        for graph in self.graphs:
            self._note_if_ended(graph)
        is_wanted = self._folder.manifest.facts.get(WANTED) == [one.name for one in self.graphs]
        return is_wanted and not self._waiting and self._folder.is_tidy

    def _note_if_ended(self, graph: GraphState) -> None:
        """Note a graph that is there, or that others have tried and failed since the start."""
        entry = self._folder.manifest.graphs.get(graph.name)
        if entry is None or key_digest(entry.key) != key_digest(graph.key):
            return
        if entry.status == "failed" and entry != self._at_first.get(graph.name):
            graph.state, graph.seconds = State.FAILED, entry.seconds
            graph.error = entry.error or ""
        if self._folder.has(graph.name, graph.key):
            graph.state, graph.seconds = State.THERE, entry.seconds
            graph.num_bytes, graph.peak_bytes = entry.file.size, entry.peak_bytes

    def _publish(self, graph: GraphState, traced: Traced) -> None:
        if traced.data is None:
            self._fail(graph, traced.error_text, traced.seconds)
        else:
            self._folder.publish(
                graph.name,
                traced.data,
                key=graph.key,
                seconds=traced.seconds,
                peak_bytes=traced.peak_bytes,
            )
            graph.state, graph.num_bytes = State.DONE, len(traced.data)
        graph.seconds, graph.peak_bytes = traced.seconds, traced.peak_bytes

    def _fail(self, graph: GraphState, error_text: str, seconds: float) -> None:
        self._folder.fail(graph.name, error_text, key=graph.key, seconds=seconds)
        graph.state, graph.error = State.FAILED, error_text.splitlines()[0]
        graph.seconds = seconds

    def _bury(self, connection: Connection) -> None:
        """Note what a worker that is gone was doing, and start another for what is left."""
        worker = self._workers.pop(connection)
        end = worker.wait_for_end()
        worker.stop()
        graph = self._in_work.pop(connection)
        if graph.state is State.COMPILING:
            error_text = f"while this graph was compiled, {end}"
            self._fail(graph, error_text, time.monotonic() - graph.since)
        else:
            self._num_allowed -= 1
        self._release(graph)
        if not self._num_allowed:
            raise SetError(f"no worker can start: {end}")

    def _end(self) -> None:
        """End the workers and claims that there are still."""
        for worker in self._workers.values():
            worker.stop()
        for graph in self._in_work.values():
            graph.state = State.WAITING
        self._workers.clear()
        self._in_work.clear()
        while self._claims:
            self._claims.popitem()[1]()


def missing_graphs(manifest: Manifest) -> list[str]:
    """Return the names of graphs that a set was to have and has not: it was interrupted, say."""
    wanted = manifest.facts.get(WANTED, ())
    assert isinstance(wanted, list | tuple)
    done = {graph.name for graph in manifest.graphs.values() if graph.status == "done"}
    return [name for name in wanted if name not in done]
