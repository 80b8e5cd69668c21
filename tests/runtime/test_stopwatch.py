from __future__ import annotations

import time

import pytest

from noria.runtime.stopwatch import Stopwatch


def test_parts_follow_each_other_and_the_same_name_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 101.0, 103.5, 103.75])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    watch = Stopwatch()

    for part in ("read", "pack", "read"):
        watch.end(part)

    assert list(watch.seconds.items()) == [("read", 1.25), ("pack", 2.5)]
