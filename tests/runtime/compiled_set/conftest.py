"""What tests of compiled sets share; their sets need not survive a power cut."""

from __future__ import annotations

import os

import pytest
from thread_workers import FakeTracer, start_thread

from noria.runtime.compiled_set import worker, workers


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda number: None)


@pytest.fixture
def tracer(monkeypatch: pytest.MonkeyPatch) -> type[FakeTracer]:
    """Let workers be threads with this tracer."""

    class Steered(FakeTracer):
        traced: list[str] = []  # noqa: RUF012
        act = staticmethod(lambda name: None)

    monkeypatch.setattr(worker, "start_process", start_thread)
    monkeypatch.setattr(worker, "Tracer", Steered)
    monkeypatch.setattr(workers, "list_graphs", lambda recipe: Steered(recipe).graphs)
    return Steered
