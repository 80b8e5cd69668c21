"""Peers that need no engine: one inside the test, one in a process of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from noria.runtime.bench.peer_process import Launch, PeerError, PeerProcess, Run, Started, Variant
from noria.runtime.bench.peer_worker import Load
from noria.runtime.bench.roofline import stored_as

FAKE_WORKER = Path(__file__).with_name("fake_worker.py")


@dataclass
class FakePeer:
    """Takes the given seconds for its runs, and notes what it is asked in a shared list."""

    variant: Variant
    calls: list[tuple[str, str]]
    seconds: Sequence[float] = ()
    reason: str | None = None
    fails_at: str | None = None
    prompts: list[Sequence[Sequence[int]]] = field(default_factory=list)

    def available(self) -> str | None:
        return self.reason

    def start(self) -> Started:
        self._note("start")
        return Started("1.0", 2.5)

    def run(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> Run:
        index = len(self.prompts)
        self._note(f"run {index}")
        self.prompts.append(prompts)
        ids = tuple(tuple(range(new_tokens)) for _ in prompts)
        return Run((99.0, *self.seconds)[index], ids, 0.01)

    def peak_rss_bytes(self) -> int:
        return 1000

    def stop(self) -> None:
        self._note("stop")

    def _note(self, what: str) -> None:
        self.calls.append((self.variant.engine, what))
        if what == self.fails_at:
            raise PeerError(f"failed at {what}")


@pytest.fixture
def calls() -> list[tuple[str, str]]:
    """What fake peers were asked, in order."""
    return []


@pytest.fixture
def fake_peer(calls: list[tuple[str, str]]) -> Callable[..., FakePeer]:
    """Return a function that makes peers which share ``calls``."""

    def make(engine: str, **behaviour: object) -> FakePeer:
        return FakePeer(Variant(engine, stored_as("float32"), "float32"), calls, **behaviour)  # type: ignore[arg-type]

    return make


@pytest.fixture
def fake_process() -> Callable[..., PeerProcess]:
    """Return a function that makes peers in processes; ``behaviour`` is what goes wrong."""

    def make(
        behaviour: str, *, command: tuple[str, ...] | None = None, **launch: object
    ) -> PeerProcess:
        load = Load(behaviour, "float32", 1, 4, 64, {})
        fake_command = command or (sys.executable, str(FAKE_WORKER))
        return PeerProcess(
            Variant(f"fake {behaviour}", stored_as("float32"), "float32"),
            Launch(fake_command, load, environment=dict(os.environ), **launch),  # type: ignore[arg-type]
        )

    return make
