"""Which requests run in the next step, and with how many tokens.

First come, first served. A step is either a prefill of waiting requests, packed up to the
largest bucket, or one token for every running request; prefill goes first. The scheduler knows
requests and blocks, never tensors.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import islice

from ..bucketing import StepPolicy
from .kv_cache_manager import KVCacheManager
from .request import Request, RequestStatus
from .scheduler_output import Phase, ScheduledRequest, SchedulerOutput


class Scheduler:
    """Owns the queues of waiting and running requests."""

    def __init__(self, kv_cache: KVCacheManager, policy: StepPolicy, *, max_num_seqs: int) -> None:
        """Schedule over this cache, packing prompts by this policy."""
        self._kv_cache = kv_cache
        self._policy = policy
        self._max_num_seqs = max_num_seqs
        self._waiting: deque[Request] = deque()
        self._running: list[Request] = []

    @property
    def num_unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self._waiting) + len(self._running)

    @property
    def running(self) -> Sequence[Request]:
        """Requests that hold blocks, oldest first."""
        return self._running

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._waiting.append(request)

    def schedule(self) -> SchedulerOutput | None:
        """Return the next step; None if there is nothing to do."""
        admitted = self._admit()
        if admitted:
            return self._step(Phase.PREFILL, admitted)
        if self._running:
            return self._step(Phase.DECODE, self._running)
        assert not self._waiting, "a request waits although nothing runs"
        return None

    def undo(self, output: SchedulerOutput) -> None:
        """Take back a step that did not run: its prompts wait again, first in the queue."""
        if output.phase is Phase.DECODE:
            for scheduled in output.requests:
                self._kv_cache.trim(scheduled.request_id, scheduled.num_computed_tokens)
            return
        num_older = len(self._running) - len(output.requests)
        for request in reversed(self._running[num_older:]):
            self._kv_cache.free(request.request_id)
            request.status = RequestStatus.WAITING
            self._waiting.appendleft(request)
        del self._running[num_older:]

    def remove(self, request: Request) -> None:
        """Forget a finished request and free its blocks, wherever it is."""
        self._kv_cache.free(request.request_id)
        if request in self._running:
            self._running.remove(request)
        else:
            self._waiting.remove(request)

    def _admit(self) -> list[Request]:
        """Move the requests at the head of the queue that fit the next prefill to running.

        A request is admitted only if free blocks that are not owed to running ones cover all it
        may ever need: nothing that runs can then be left without a block.
        """
        room = self._max_num_seqs - len(self._running)
        lengths = [request.num_tokens for request in islice(self._waiting, room)]
        admitted: list[Request] = []
        for _ in range(self._policy.num_to_pack(lengths)):
            request = self._waiting[0]
            if not self._kv_cache.reserve(request.request_id, request.max_total_tokens):
                break
            admitted.append(self._waiting.popleft())
            request.status = RequestStatus.RUNNING
        self._running.extend(admitted)
        return admitted

    def _step(self, phase: Phase, requests: Iterable[Request]) -> SchedulerOutput:
        return SchedulerOutput(phase, tuple(self._schedule_one(request) for request in requests))

    def _schedule_one(self, request: Request) -> ScheduledRequest:
        self._kv_cache.grow(request.request_id, request.num_tokens)
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.uncomputed_token_ids(),
            num_computed_tokens=request.num_computed_tokens,
            block_tables=self._kv_cache.block_tables(request.request_id),
            params=request.params,
            seed=request.seed,
        )
