"""Which requests run in the next step, and with how many tokens.

A step is a prefill of prompts, in chunks up to the largest bucket, or one token for every running
request; prefill goes first. The scheduler knows requests and blocks, never tensors.

Requests run in their order (priority, then submission). One is admitted when there is room for all
the tokens that it has; what it generates takes blocks as they are needed. Where they run out, the
last running request in the order is preempted: it gives back its blocks, waits, and later computes
its tokens again. The first in the order is never preempted for another, so it always ends, then
the next is the first: nothing starves and nothing waits for ever.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from operator import attrgetter

from ..bucketing import StepPolicy, num_spare_blocks
from .block_table import BlockCopy
from .kv_cache_manager import Donor, KVCacheManager
from .request import Request, RequestStatus
from .scheduler_output import Phase, ScheduledRequest, SchedulerOutput

_ORDER = attrgetter("order")


class Scheduler:
    """Owns the queues of waiting and running requests, both in order."""

    def __init__(
        self,
        kv_cache: KVCacheManager,
        policies: Mapping[Phase, StepPolicy],
        *,
        max_num_seqs: int,
    ) -> None:
        """Schedule over this cache.

        Args:
            kv_cache: blocks of the running requests.
            policies: how prompts fill a step, for each phase that runs prompts.
            max_num_seqs: requests that run at once.
        """
        self._kv_cache = kv_cache
        self._policies = policies
        self._max_num_seqs = max_num_seqs
        self._num_spare_blocks = num_spare_blocks(min(kv_cache.num_usable_blocks))
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._behind: dict[int, list[Request]] = {}

    @property
    def running(self) -> Sequence[Request]:
        """Requests that hold blocks, in order."""
        return self._running

    def add(self, requests: Sequence[Request]) -> None:
        """Queue the samples of one prompt; all but the first wait until its prompt is computed."""
        first, *others = requests
        insort(self._waiting, first, key=_ORDER)
        if others:
            self._behind[first.prompt_key] = others

    def schedule(self) -> SchedulerOutput | None:
        """Return the next step; None if there is nothing to do."""
        self._admit_waiting()
        if not self._running:
            assert not self._waiting, "a request waits although nothing runs"
            return None
        return self._prefill() or self._decode()

    def commit(self, output: SchedulerOutput) -> None:
        """Note that a step ran: its tokens are in the cache."""
        rows = {scheduled.request_id: scheduled for scheduled in output.requests}
        for request in [one for one in self._running if one.request_id in rows]:
            request.num_computed_tokens = rows[request.request_id].num_context_tokens
            self._kv_cache.commit(request.request_id, request.num_computed_tokens)
            if request.num_computed_tokens >= request.num_prompt_tokens:
                self._release_samples(request)
            # Not before: samples compute the last token again and see one token more.
            self._kv_cache.trim(request.request_id)

    def undo(self, output: SchedulerOutput) -> None:
        """Take back a step that did not run to its end: its requests compute their tokens again.

        What the step left in the cache is unknown.
        """
        scheduled = {request.request_id for request in output.requests}
        for request in [one for one in self._running if one.request_id in scheduled]:
            self._preempt(request)

    def remove(self, request: Request) -> None:
        """Forget a finished request and free its blocks, wherever it is."""
        self._kv_cache.free(request.request_id)
        behind = self._behind.get(request.prompt_key, [])
        for queue in (self._running, self._waiting, behind):
            at = bisect_left(queue, request.order, key=_ORDER)
            if at < len(queue) and queue[at] is request:
                del queue[at]
        if request.sample == 0:
            self._release_samples(request)

    def _admit_waiting(self) -> None:
        """Move the requests at the head of the queue that there is room for to running."""
        while self._waiting and len(self._running) < self._max_num_seqs:
            if not self._admit(self._waiting[0]):
                break
            self._start(self._waiting.pop(0))

    def _admit(self, request: Request) -> bool:
        donor = self._find_donor(request)
        num_spare_blocks = self._num_spare_blocks if self._running else 0
        is_admitted = self._kv_cache.admit(
            request.request_id,
            request.num_tokens,
            donor=donor,
            num_spare_blocks=num_spare_blocks,
        )
        if is_admitted and donor is not None:
            request.num_computed_tokens = donor.num_tokens
        return is_admitted

    def _find_donor(self, request: Request) -> Donor | None:
        """Return a running sample of the same prompt; its last token is computed once more.

        The logits behind the prompt are needed again, for a draw of the request's own.
        """
        num_tokens = request.num_prompt_tokens - 1
        if request.params.n == 1 or num_tokens == 0:
            return None
        for other in self._running:
            if other.prompt_key == request.prompt_key:
                donor = Donor(other.request_id, num_tokens)
                if self._kv_cache.can_lend(donor, request.num_tokens):
                    return donor
        return None

    def _start(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        insort(self._running, request, key=_ORDER)

    def _release_samples(self, request: Request) -> None:
        """Let the other samples of a prompt run: now where there is room, beside the first.

        A window that moves on would take blocks that they can share now. Who waits in an earlier
        place is not overtaken.
        """
        for sample in self._behind.pop(request.prompt_key, ()):
            is_next = not self._waiting or sample.order < self._waiting[0].order
            has_seat = len(self._running) < self._max_num_seqs and not request.is_finished
            if is_next and has_seat and self._admit(sample):
                self._start(sample)
            else:
                insort(self._waiting, sample, key=_ORDER)

    def _prefill(self) -> SchedulerOutput | None:
        """Run prompts that are not computed, as far as they have the phase of the first of them."""
        pending = [one for one in self._running if one.num_uncomputed_tokens > 1]
        if not pending:
            return None
        phase = _prefill_phase(pending[0])
        requests = [one for one in pending if _prefill_phase(one) is phase]
        lengths = self._policies[phase].pack(one.num_prefill_tokens for one in requests)
        rows: list[ScheduledRequest] = []
        copies: list[BlockCopy] = []
        for request, length in zip(requests, lengths, strict=False):
            end = request.num_computed_tokens + length
            grown = self._kv_cache.grow(request.request_id, end)
            assert grown is not None, f"{request.request_id} was promised room for its prompt"
            copies += grown
            rows.append(self._schedule(request, end, phase))
        return SchedulerOutput(phase, tuple(rows), tuple(copies))

    def _decode(self) -> SchedulerOutput:
        """Run the last token of every request, preempting from the end where blocks run out."""
        rows: list[ScheduledRequest] = []
        copies: list[BlockCopy] = []
        # Preempting shortens the list behind the request at hand, or with it.
        while len(rows) < len(self._running):
            request = self._running[len(rows)]
            grown = self._grow_or_preempt(request)
            if grown is None:
                break
            copies += grown
            rows.append(self._schedule(request, request.num_tokens, Phase.DECODE))
        assert rows, "the first request does not fit the cache"
        return SchedulerOutput(Phase.DECODE, tuple(rows), tuple(copies))

    def _grow_or_preempt(self, request: Request) -> tuple[BlockCopy, ...] | None:
        """Return the copies that growing takes; None if the request itself was preempted."""
        while (grown := self._kv_cache.grow(request.request_id, request.num_tokens)) is None:
            victim = self._running[-1]
            self._preempt(victim)
            if victim is request:
                return None
        return grown

    def _preempt(self, request: Request) -> None:
        """Take the blocks of a running request; it waits in its place in the order."""
        self._running.remove(request)
        self._kv_cache.free(request.request_id)
        request.status = RequestStatus.WAITING
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        insort(self._waiting, request, key=_ORDER)

    def _schedule(self, request: Request, end: int, phase: Phase) -> ScheduledRequest:
        """Return a request's tokens up to position ``end``; behind the last one it draws."""
        start = request.num_computed_tokens
        draws = end == request.num_tokens
        return ScheduledRequest(
            request_id=request.request_id,
            token_ids=request.token_ids(start, end),
            num_computed_tokens=start,
            block_tables=self._kv_cache.block_tables(request.request_id),
            sampling=request.sampling_state.row(end) if draws else None,
            next_token_ids=request.token_ids(start + 1, end + 1) if phase is Phase.SCORE else (),
            num_prompt_logprobs=request.params.prompt_logprobs or 0,
        )


def _prefill_phase(request: Request) -> Phase:
    return Phase.SCORE if request.is_scoring else Phase.PREFILL
