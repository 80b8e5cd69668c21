"""Compiling what a set lacks while this process does something else."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from ..errors import SetError, fault_text
from .graph_states import GraphState, State
from .tracing import Recipe
from .worker import Worker
from .worker_count import count_workers
from .workers import SetCompiler
from .writable_set import WritableSet

LOG = logging.getLogger(__name__)
NICENESS = 5
"""Of workers: who is served goes first. Beside a busy process 10 leaves a worker a tenth of a CPU,
this a quarter."""
STOP_S = 15.0
"""What stopping may take: the compiler looks for it several times a second."""


class BackgroundCompiler:
    """A thread that lets worker processes compile what a set lacks. Say ``close`` in the end.

    Its attributes may be read by any thread, and change as a whole.

    Attributes:
        ready: names of the graphs that are in the set.
        failed: names of those that could not be compiled, and why in one line.
        problem: why nothing more is compiled, if that is so before all is done.
    """

    def __init__(self, store: WritableSet, recipe: Recipe) -> None:
        """Prepare to compile the graphs of a recipe into a set."""
        self.ready: frozenset[str] = frozenset()
        self.failed: dict[str, str] = {}
        self.problem: str | None = None
        self._store = store
        self._recipe = recipe
        self._news = threading.Condition()
        self._num_news = 0
        self._is_over = False
        self._stop: Callable[[], None] = _nothing
        # It must not keep an interpreter alive that has come to its end.
        self._thread = threading.Thread(target=self._run, name="compiling", daemon=True)

    @property
    def is_over(self) -> bool:
        """Whether nothing more will be ready."""
        return self._is_over

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """End the workers and the thread; what was published stays."""
        with self._news:
            self.problem = self.problem or "compiling was stopped"
            self._stop()
            is_over = self._is_over
        # The garbage collector, which may call this, runs in any thread.
        is_own = self._thread is threading.current_thread()
        if not is_over and not is_own and self._thread.ident is not None:
            self._thread.join(STOP_S)

    def wait_for_news(self, num_seen: int, timeout_s: float) -> int:
        """Wait for one more change than ``num_seen``, the end included; return their number."""
        with self._news:
            self._news.wait_for(lambda: self._num_news > num_seen, timeout_s)
            return self._num_news

    def _run(self) -> None:
        try:
            self._compile()
        except Exception as error:
            text = str(error) if isinstance(error, SetError) else fault_text(error)
            self.problem = self.problem or text
        finally:
            with self._news:
                self._is_over = True
                self._num_news += 1
                self._news.notify_all()

    def _compile(self) -> None:
        compiler = SetCompiler(
            self._store, self._recipe, self._note, partial(Worker, niceness=NICENESS)
        )
        with self._news:
            if self.problem is not None:  # closed before there was anything to stop
                return
            self._stop = compiler.stop
        compiler.run(count_workers(None).num)

    def _note(self, graphs: Sequence[GraphState], num_workers: int) -> None:
        ready = frozenset(g.name for g in graphs if g.state in (State.DONE, State.THERE))
        failed = {graph.name: graph.error for graph in graphs if graph.state is State.FAILED}
        if ready == self.ready and failed == self.failed:
            return
        with self._news:
            self.ready, self.failed = ready, failed
            self._num_news += 1
            self._news.notify_all()


def _nothing() -> None:
    """Stop what has not begun."""
