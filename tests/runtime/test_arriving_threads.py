"""Threads that share an engine whose graphs arrive, and the memory that these take."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from arriving_graphs import Arriving, Workshop
from local_sets import warnings_in

from noria.bucketing import DecodeBucket
from noria.runtime.errors import SetError
from noria.runtime.graph_source import Run
from noria.runtime.sampling_params import SamplingParams

LONG_S = 600.0
SMALL = DecodeBucket(1, 16)


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """Compiles once."""
    return Workshop(tmp_path_factory.mktemp("sets") / "set")


class ToldLock:
    """A lock that tells when somebody is about to wait for it."""

    def __init__(self, lock: Any, tell: Any) -> None:
        self._lock = lock
        self._tell = tell

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._tell("waits")
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_waiting_ends_after_another_thread_has_taken_the_last_graph(workshop: Workshop) -> None:
    """Not while it does: what is measured then would run in a larger one."""
    news: queue.SimpleQueue[str] = queue.SimpleQueue()
    made: list[Arriving] = []
    waiting = threading.Thread(target=lambda: made[0].engine.wait_for_graphs() or news.put("over"))
    first_news = []

    def change(name: str, run: Run) -> Run:
        def start_waiting() -> None:
            if not first_news:
                waiting.start()
                first_news.append(news.get(timeout=LONG_S))
            run()

        return start_waiting if name == SMALL.label else run

    buckets = workshop.tiny.plan.buckets
    arriving = workshop.engine([one for one in buckets if one != SMALL], change)
    made.append(arriving)
    arriving.engine.lock = ToldLock(arriving.engine.lock, news.put)  # type: ignore[assignment]
    arriving.announce(SMALL)

    arriving.step()
    waiting.join()

    assert first_news == ["waits"]
    assert news.get(timeout=LONG_S) == "over"
    assert arriving.graphs.models.keys() == set(buckets)


def test_a_graph_for_which_there_is_no_memory_is_a_warning_and_stays_out(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else the system would end the process at the first step that writes there."""

    def refuse() -> None:
        raise MemoryError("no memory for 4,096 bytes: Cannot allocate memory")

    arriving = workshop.engine()
    arriving.announce(*workshop.tiny.plan.buckets)
    monkeypatch.setattr(workshop.kernels, "settle", refuse)

    arriving.step()
    monkeypatch.undo()
    arriving.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=4))
    arriving.finish()
    with pytest.raises(SetError, match="no memory"):
        arriving.engine.wait_for_graphs()

    (warning,) = warnings_in(caplog)
    assert "no memory for 4,096 bytes" in warning
    assert len(arriving.graphs.models) == len(workshop.tiny.plan.buckets) - 1
