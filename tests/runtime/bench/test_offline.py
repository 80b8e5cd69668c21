"""Alternation, and what becomes of peers that cannot start or that fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from noria.runtime.bench.offline import PeerResult, Sample, measure
from noria.runtime.bench.peer_process import Started
from noria.runtime.bench.workload import Workload

Make = Callable[..., Any]
WORKLOAD = Workload(num_prompts=2, prompt_len=4, new_tokens=8, vocab_size=100)


def measure_quietly(peers: list[Any], num_rounds: int = 2) -> list[PeerResult]:
    return measure(peers, WORKLOAD, num_rounds=num_rounds, progress=lambda *_: None)


def test_peers_run_in_turn_after_all_have_started_and_run_once_unmeasured(
    fake_peer: Make, calls: list[tuple[str, str]]
) -> None:
    measure_quietly([fake_peer(name, seconds=(1.0, 1.0)) for name in "ab"])

    whats = ["start", "run 0", "run 1", "run 2", "stop"]
    assert calls == [(name, what) for what in whats for name in "ab"]


def test_the_unmeasured_run_gives_first_ids_and_no_sample(fake_peer: Make) -> None:
    (result,) = measure_quietly([fake_peer("a", seconds=(2.0, 3.0))])

    assert result.samples == [Sample(2.0, 0.01), Sample(3.0, 0.01)]
    assert result.first_ids == ((0, 1, 2, 3, 4, 5),) * 2
    assert result.started == Started("1.0", 2.5)
    assert result.peak_rss_bytes == 1000
    assert result.problem is None


def test_all_peers_get_the_same_prompts_and_every_run_others(fake_peer: Make) -> None:
    a, b = (fake_peer(name, seconds=(1.0, 1.0)) for name in "ab")

    measure_quietly([a, b])

    assert a.prompts == b.prompts == [WORKLOAD.prompts(run) for run in range(3)]


def test_an_unavailable_peer_is_reported_with_its_reason_and_never_started(
    fake_peer: Make, calls: list[tuple[str, str]]
) -> None:
    missing, present = fake_peer("a", reason="not installed"), fake_peer("b", seconds=(1.0, 1.0))

    results = measure_quietly([missing, present])

    assert [result.problem for result in results] == ["not installed", None]
    assert {engine for engine, _ in calls} == {"b"}


@pytest.mark.parametrize(("fails_at", "num_samples"), [("start", 0), ("run 0", 0), ("run 2", 1)])
def test_a_failing_peer_keeps_its_runs_and_costs_the_others_nothing(
    fake_peer: Make, calls: list[tuple[str, str]], fails_at: str, num_samples: int
) -> None:
    failing = fake_peer("a", seconds=(1.0,) * 3, fails_at=fails_at)
    other = fake_peer("b", seconds=(1.0, 2.0, 3.0))

    results = measure_quietly([failing, other], num_rounds=3)

    assert results[0].problem == f"failed at {fails_at}"
    assert len(results[0].samples) == num_samples
    assert [sample.seconds for sample in results[1].samples] == [1.0, 2.0, 3.0]
    assert calls.count(("a", "stop")) == calls.count(("b", "stop")) == 1


def test_all_peers_are_stopped_when_the_measurement_is_interrupted(
    fake_peer: Make, calls: list[tuple[str, str]]
) -> None:
    def interrupt(what: str, num_done: int, total: int) -> None:
        if num_done == 3:
            raise KeyboardInterrupt

    peers = [fake_peer(name, seconds=(1.0,)) for name in "ab"]
    with pytest.raises(KeyboardInterrupt):
        measure(peers, WORKLOAD, num_rounds=1, progress=interrupt)

    assert calls[-2:] == [("a", "stop"), ("b", "stop")]


def test_progress_counts_every_step(fake_peer: Make) -> None:
    seen: list[tuple[str, int, int]] = []
    peers = [fake_peer(name, seconds=(1.0, 1.0)) for name in "ab"]

    measure(peers, WORKLOAD, num_rounds=2, progress=lambda *step: seen.append(step))

    assert [(done, total) for _, done, total in seen] == [(done, 8) for done in range(8)]
    assert seen[-1][0] == "b float32/float32: run 2 of 2"
