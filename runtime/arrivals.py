"""Graphs that arrive while an engine serves, and how it takes them between two steps."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..bucketing import Bucket
from .errors import fault_text
from .graphs import CompiledGraphs
from .kv_cache_manager import KVCacheManager
from .model_runner import ModelRunner
from .warmup import WarmUp

LOG = logging.getLogger(__name__)
RETRY_S = 0.05
"""Until another look for free blocks, by who waits while others run steps."""


class Arrivals(Protocol):
    """What an engine is told of graphs that are still to come.

    Attributes:
        failures: lines about graphs that will never come.
    """

    failures: Sequence[str]

    @property
    @abstractmethod
    def num_pending(self) -> int:
        """Graphs that are still to come."""

    def start(self) -> None:
        """Let graphs arrive."""

    def adopt(self, kv_cache: KVCacheManager) -> bool:
        """Take one graph that has arrived, if there is one; called between steps.

        It is first run on free blocks of ``kv_cache``. Returns whether fewer are to come now.
        """

    def wait(self) -> None:
        """Wait until there may be one to take. The engine may run steps meanwhile."""

    def close(self) -> None:
        """Let no more arrive."""


class NoArrivals(Arrivals):
    """All graphs are there."""

    failures: Sequence[str] = ()
    num_pending = 0

    def start(self) -> None:
        """Do nothing."""
        return

    def adopt(self, kv_cache: KVCacheManager) -> bool:
        """Find nothing to take."""
        return False

    def wait(self) -> None:
        """Wait for nothing."""
        return

    def close(self) -> None:
        """Do nothing."""
        return


class Compiling(Protocol):
    """Who makes graphs, see ``BackgroundCompiler``."""

    ready: frozenset[str]
    failed: dict[str, str]
    problem: str | None

    @property
    @abstractmethod
    def is_over(self) -> bool:
        """Whether nothing more will be ready."""

    def start(self) -> None:
        """Begin."""

    def wait_for_news(self, num_seen: int, timeout_s: float) -> int:
        """Wait for a change; return their number."""

    def close(self) -> None:
        """Compile no more."""


class GraphArrivals(Arrivals):
    """Takes the graphs that somebody compiles, each once its logits are the expected bits."""

    def __init__(
        self,
        expected: Sequence[Bucket],
        compiling: Compiling,
        *,
        graphs: CompiledGraphs,
        warm_up: WarmUp,
        runner: ModelRunner,
    ) -> None:
        """Expect the graphs of these buckets, none of which is there."""
        self.failures: list[str] = []
        self._compiling = compiling
        self._graphs = graphs
        self._warm_up = warm_up
        self._runner = runner
        self._pending: dict[Bucket, Mapping[str, object]] = {
            bucket: graphs.listing(bucket) for bucket in expected
        }
        self._num_news = 0

    @property
    def num_pending(self) -> int:
        """Graphs that are still to come."""
        return len(self._pending)

    def start(self) -> None:
        """Let graphs arrive."""
        self._compiling.start()

    def adopt(self, kv_cache: KVCacheManager) -> bool:
        """Take the first graph that has arrived, or give up those that never will."""
        num_before = len(self._pending)
        if not num_before:
            return False
        is_over = self._compiling.is_over  # asked first: all that was ready then is seen below
        ready = self._compiling.ready
        arrived = (bucket for bucket, names in self._pending.items() if ready >= names.keys())
        bucket = next(arrived, None)
        if bucket is None:
            self._give_up(is_over)
        else:
            self._take(bucket, kv_cache)
        return len(self._pending) < num_before

    def wait(self) -> None:
        """Wait until there may be one to take."""
        self._num_news = self._compiling.wait_for_news(self._num_news, RETRY_S)

    def close(self) -> None:
        """Let no more arrive."""
        self._compiling.close()
        pending, self._pending = self._pending, {}
        if pending:
            self.failures.append(_line([*pending], "compiling was stopped"))

    def _take(self, bucket: Bucket, kv_cache: KVCacheManager) -> None:
        """Load a graph, run it on free blocks, and use it; without free blocks, another time."""
        with kv_cache.borrowed(self._warm_up.num_blocks) as blocks:
            if blocks is None:
                return
            self._pending.pop(bucket, None)
            try:
                self._graphs.add(bucket)
                self._graphs.settle()
                is_right = self._warm_up.admits(self._graphs.models[bucket], blocks)
            except Exception as error:  # whatever is wrong with it, the others serve
                self._graphs.drop(bucket)
                self._fail([bucket], fault_text(error))
                return
        if is_right:
            self._runner.use(self._graphs.plan.restricted_to(self._graphs.models))
            return
        self._warm_up.refuse(bucket)

    def _give_up(self, is_over: bool) -> None:
        """Forget graphs of which a part has failed, or all where nothing is compiled any more."""
        failed = self._compiling.failed
        for bucket, names in list(self._pending.items()):
            errors = [failed[name] for name in names if name in failed]
            if errors:
                self._fail([bucket], errors[0])
        left = [*self._pending]  # at once: another thread may close this
        if is_over and left:
            self._fail(left, self._compiling.problem or "nobody compiled them")

    def _fail(self, buckets: Sequence[Bucket], reason: str) -> None:
        for bucket in buckets:
            self._pending.pop(bucket, None)
        line = _line(buckets, reason)
        self.failures.append(line)
        LOG.warning("%s; larger graphs run instead", line)


def _line(buckets: Sequence[Bucket], reason: str) -> str:
    labels = ", ".join(bucket.label for bucket in buckets)
    start = f"graph {labels} is" if len(buckets) == 1 else f"graphs {labels} are"
    return f"{start} not there: {reason}"
