"""Measure peers in turn: one unmeasured run each, then rounds in which every peer runs once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from .peer_process import Peer, PeerError, Started, Variant
from .workload import Workload

NUM_FIRST_IDS = 6
Progress = Callable[[str, int, int], None]
"""Called with what is worked on, how many steps are done and how many there are."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured run: its seconds, and the CPU share of other processes (None: not known)."""

    seconds: float
    others_share: float | None


@dataclass(slots=True)
class PeerResult:
    """What became of one peer; it fills up as the measurement goes on.

    Attributes:
        variant: what was measured.
        started: version and start-up time, None if it never was ready.
        samples: measured runs, in the order of the rounds.
        first_ids: the first ids of every prompt of the unmeasured run.
        peak_rss_bytes: most memory held, None if not known.
        problem: why it was not started, or why it ended early; what was measured until then stays.
    """

    variant: Variant
    started: Started | None = None
    samples: list[Sample] = field(default_factory=list)
    first_ids: tuple[tuple[int, ...], ...] = ()
    peak_rss_bytes: int | None = None
    problem: str | None = None


def measure(
    peers: Sequence[Peer], workload: Workload, *, num_rounds: int, progress: Progress
) -> list[PeerResult]:
    """Start all peers, run them in turn (A, B, A, B, ...) and stop them.

    Alternating spreads a disturbance over all peers instead of over whoever ran at that time. A
    peer that fails is stopped and reported; the others go on. Results are in the order of peers.
    """
    measurement = _Measurement(peers, workload, num_rounds=num_rounds, progress=progress)
    try:
        measurement.run()
    finally:
        measurement.stop()
    return measurement.results


class _Measurement:
    """The peers that still run, and the results of all."""

    def __init__(
        self, peers: Sequence[Peer], workload: Workload, *, num_rounds: int, progress: Progress
    ) -> None:
        self.results = [PeerResult(peer.variant, problem=peer.available()) for peer in peers]
        pairs = zip(peers, self.results, strict=True)
        self._running = [(peer, result) for peer, result in pairs if result.problem is None]
        self._workload, self._num_rounds, self._progress = workload, num_rounds, progress
        self._num_done, self._num_steps = 0, len(self._running) * (num_rounds + 2)

    def run(self) -> None:
        self._each("start", _start)
        self._each("unmeasured run", self._warm)
        for index in range(1, self._num_rounds + 1):
            prompts = self._workload.prompts(index)
            self._each(f"run {index} of {self._num_rounds}", partial(self._sample, prompts=prompts))
        for peer, result in self._running:
            result.peak_rss_bytes = peer.peak_rss_bytes()

    def stop(self) -> None:
        for peer, _ in self._running:
            peer.stop()

    def _each(self, what: str, step: Callable[[Peer, PeerResult], None]) -> None:
        """Take one step with every peer; those that fail are out."""
        for peer, result in list(self._running):
            self._progress(f"{peer.variant.label}: {what}", self._num_done, self._num_steps)
            self._num_done += 1
            try:
                step(peer, result)
            except PeerError as error:
                result.problem = str(error)
                peer.stop()
                self._running.remove((peer, result))

    def _warm(self, peer: Peer, result: PeerResult) -> None:
        run = peer.run(self._workload.prompts(0), self._workload.new_tokens)
        result.first_ids = tuple(ids[:NUM_FIRST_IDS] for ids in run.token_ids)

    def _sample(self, peer: Peer, result: PeerResult, *, prompts: list[list[int]]) -> None:
        run = peer.run(prompts, self._workload.new_tokens)
        result.samples.append(Sample(run.seconds, run.others_share))


def _start(peer: Peer, result: PeerResult) -> None:
    result.started = peer.start()
