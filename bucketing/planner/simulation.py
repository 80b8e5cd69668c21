"""Which steps traffic leads to: the scheduler's loop over lengths and times, without a model.

The rules are those of the runtime's scheduler: requests are admitted in order while there are seats
and blocks for the tokens that they have, prompts run first, in chunks that the step policy names,
and where blocks run out the last request of the order starts again. Decode steps in which nothing
changes but the contexts are counted together.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter

import numpy as np

from ..padding import packed_len, round_up
from ..policy import StepPolicy, num_spare_blocks
from ..sets.demand import DecodeDemand, PrefillDemand
from ..traces.trace import Trace
from .simulated_requests import ServiceLimits, SimulatedRequest, simulated_requests
from .step_times import StepTimes

_INDEX = attrgetter("index")

PrefillShape = tuple[int, int, int, int]
"""Rows, tokens, longest context, cached tokens that a row attends to on average."""
DecodeShape = tuple[int, int]
"""Requests, longest context."""


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """What ran.

    Attributes:
        prefill_shapes: steps by ``PrefillShape``.
        decode_shapes: steps by (requests, longest context, rounded up to the resolution).
        seconds: from the first arrival to the end.
        busy_s: of them in steps; 0 where nobody knows.
        num_preemptions: how often a request started again.
        live_lens: tokens that a request has on average, by the shape of decode steps; where one
            is missing, all are as long as the longest.
    """

    prefill_shapes: Mapping[PrefillShape, float]
    decode_shapes: Mapping[DecodeShape, float]
    seconds: float
    busy_s: float
    num_preemptions: int
    live_lens: Mapping[DecodeShape, float] = field(default_factory=dict)

    @property
    def prefill(self) -> PrefillDemand:
        """Steps by their rows."""
        rows = [shape[0] for shape in self.prefill_shapes]
        return PrefillDemand.of(rows, list(map(float, self.prefill_shapes.values())))

    @property
    def decode(self) -> DecodeDemand:
        """Steps by requests and context."""
        pairs = np.array([*self.decode_shapes], dtype=np.int64).reshape(-1, 2)
        counts = list(map(float, self.decode_shapes.values()))
        live_lens = [self.live_lens.get(shape, shape[1]) for shape in self.decode_shapes]
        return DecodeDemand.of(pairs[:, 0], pairs[:, 1], counts, live_lens)

    @property
    def mean_num_seqs(self) -> float:
        """Requests of a decode step, on average."""
        total = sum(self.decode_shapes.values())
        rows = sum(num_seqs * count for (num_seqs, _), count in self.decode_shapes.items())
        return rows / total if total else 0.0


def simulate(
    trace: Trace,
    limits: ServiceLimits,
    policy: StepPolicy,
    times: StepTimes,
    *,
    context_step: int = 1,
) -> Steps:
    """Run a trace through the scheduler's rules.

    Args:
        trace: with output lengths; without arrivals all requests wait from the start. A request
            that would be longer than ``max_model_len`` ends there.
        limits: of the service.
        policy: fills prefill steps, as it does in the engine.
        times: seconds of steps, which decide who runs beside whom.
        context_step: resolution of the contexts of decode steps; 1 is exact.

    Raises:
        ValueError: a row stands for other than one request, there are no output lengths, or a
            request can never run.
    """
    return _Service(trace, limits, policy, times, context_step).run()


class _Service:
    """The state of a simulation."""

    def __init__(
        self,
        trace: Trace,
        limits: ServiceLimits,
        policy: StepPolicy,
        times: StepTimes,
        context_step: int,
    ) -> None:
        self._limits = limits
        self._policy = policy
        self._times = times
        self._context_step = context_step
        self._coming = simulated_requests(trace, limits)
        self._next = 0
        self._waiting: list[SimulatedRequest] = []
        self._running: list[SimulatedRequest] = []
        self._prefill_shapes: Counter[PrefillShape] = Counter()
        self._decode_shapes: Counter[DecodeShape] = Counter()
        self._live_tokens: dict[DecodeShape, float] = {}
        self._now = self._busy_s = 0.0
        self._num_preemptions = 0
        self._usable = None if limits.num_blocks is None else limits.num_blocks - 1

    def run(self) -> Steps:
        while self._next < len(self._coming) or self._waiting or self._running:
            self._arrive()
            self._admit()
            if not self._running:
                self._now = max(self._now, self._coming[self._next].arrival_s)
            elif not self._prefill():
                self._decode()
        return Steps(
            self._prefill_shapes,
            self._decode_shapes,
            self._now,
            self._busy_s,
            self._num_preemptions,
            {shape: live / self._decode_shapes[shape] for shape, live in self._live_tokens.items()},
        )

    def _arrive(self) -> None:
        while self._next < len(self._coming) and self._coming[self._next].arrival_s <= self._now:
            insort(self._waiting, self._coming[self._next], key=_INDEX)
            self._next += 1

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.max_num_seqs:
            request = self._waiting[0]
            if not self._has_room(request):
                break
            request.promised = request.num_tokens
            insort(self._running, self._waiting.pop(0), key=_INDEX)

    def _has_room(self, request: SimulatedRequest) -> bool:
        """Tell whether there are blocks for all tokens that it has, and the watermark's."""
        if self._usable is None:
            return True
        spare = num_spare_blocks(self._usable) if self._running else 0
        reserved = sum(self._blocks(max(one.promised, one.num_computed)) for one in self._running)
        return reserved + self._blocks(request.num_tokens) + spare <= self._usable

    def _blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self._limits.block_size)

    def _prefill(self) -> bool:
        pending = [one for one in self._running if one.num_uncomputed > 1]
        if not pending:
            return False
        lengths = self._policy.pack(one.num_uncomputed for one in pending)
        chunk = list(zip(pending, lengths, strict=False))
        cached = sum(one.num_computed * length for one, length in chunk)
        context_len = max(one.num_computed + length for one, length in chunk)
        num_rows = packed_len(lengths, self._limits.prefill_tile)
        prefix_len = cached // num_rows
        self._prefill_shapes[num_rows, sum(lengths), context_len, prefix_len] += 1
        self._spend(self._times.prefill_s(num_rows, prefix_len, context_len))
        for request, length in chunk:
            request.num_computed += length
            if request.num_computed >= request.promised:
                request.promised = 0
            if request.num_uncomputed == 0:
                request.num_generated += 1
        self._drop_finished()
        return True

    def _decode(self) -> None:
        num_steps = self._safe_steps()
        if num_steps == 0:
            self._make_room()
            num_steps = 1
        num_seqs = len(self._running)
        num_steps = min(num_steps, min(one.num_left for one in self._running))
        need = max(one.num_computed for one in self._running) + 1
        mean = sum(one.num_computed for one in self._running) / num_seqs + 1
        num_done = 0
        while num_done < num_steps and not (num_done and self._is_awaited()):
            top = min(round_up(need + num_done, self._context_step), self._limits.max_model_len)
            seconds = self._times.decode_s(num_seqs, top, mean + num_done)
            count = min(num_steps - num_done, top - need - num_done + 1, self._steps_to(seconds))
            self._count_decode((num_seqs, top), count, mean + num_done)
            self._spend(count * seconds)
            num_done += count
        for request in self._running:
            request.num_computed += num_done
            request.num_generated += num_done
            request.promised = 0
        self._drop_finished()

    def _count_decode(self, shape: DecodeShape, count: int, mean: float) -> None:
        """Count steps, in the first of which requests have ``mean`` tokens on average."""
        self._decode_shapes[shape] += count
        live = count * (mean + (count - 1) / 2)
        self._live_tokens[shape] = self._live_tokens.get(shape, 0.0) + live

    def _is_awaited(self) -> bool:
        """Tell whether a request has come that there is a seat for."""
        has_seat = len(self._running) < self._limits.max_num_seqs and not self._waiting
        return (
            has_seat
            and self._next < len(self._coming)
            and (self._coming[self._next].arrival_s <= self._now)
        )

    def _steps_to(self, seconds: float) -> int:
        """Return the steps of so many seconds until the next arrival that there is a seat for."""
        has_seat = len(self._running) < self._limits.max_num_seqs and not self._waiting
        if not has_seat or self._next == len(self._coming) or seconds <= 0:
            return self._limits.max_model_len
        left = self._coming[self._next].arrival_s - self._now
        return max(1, int(np.ceil(left / seconds)))

    def _safe_steps(self) -> int:
        """Return the decode steps for which there surely are blocks; 0 if one may lack some."""
        if self._usable is None:
            return self._limits.max_model_len
        free = self._usable - sum(self._blocks(one.num_computed) for one in self._running)
        return self._limits.block_size * (free // len(self._running))

    def _make_room(self) -> None:
        """Give every request of one decode step its block, preempting from the end."""
        assert self._usable is not None
        free = self._usable - sum(self._blocks(one.num_computed) for one in self._running)
        row = 0
        while row < len(self._running):
            request = self._running[row]
            if request.num_computed % self._limits.block_size == 0:
                while free == 0:
                    victim = self._running[-1]
                    free += self._blocks(victim.num_computed)
                    self._preempt(victim)
                    if victim is request:
                        return
                free -= 1
            row += 1

    def _preempt(self, request: SimulatedRequest) -> None:
        self._running.pop()
        request.num_computed = request.promised = 0
        self._num_preemptions += 1
        insort(self._waiting, request, key=_INDEX)

    def _spend(self, seconds: float) -> None:
        self._now += seconds
        self._busy_s += seconds

    def _drop_finished(self) -> None:
        if any(one.num_left == 0 for one in self._running):
            self._running = [one for one in self._running if one.num_left]
