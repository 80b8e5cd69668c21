"""The loop: submit, schedule, execute, update. Knows token ids only, no text.

The engine hands plain values between the scheduler and the model runner, which do not know each
other.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral

from .arrivals import Arrivals, NoArrivals
from .constraint import TokenConstraint
from .errors import RequestError, SetError
from .interrupts import held_interrupts
from .kv_cache_manager import KVCacheManager
from .model_runner import ModelRunner, StepResult
from .random_draws import sample_seed
from .request import FinishReason, Request, TextStream
from .sampler_features import check_features
from .sampling_params import SamplingParams
from .sampling_state import SamplingState, check_bias
from .sampling_values import check_int
from .scheduler import Scheduler
from .scheduler_output import SchedulerOutput
from .value_text import value_text

MAX_PRIORITY = 2**63 - 1


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a request may be at most, named as in the configuration."""

    vocab_size: int
    max_model_len: int
    sampler_features: frozenset[str]
    max_logprobs: int
    has_priorities: bool


@dataclass(frozen=True, slots=True)
class OutputWatch:
    """What looks at a sample's tokens as they come, and at its end; called for each sample.

    ``on_finish`` is called in the thread that ran the last step, while the engine is locked.
    """

    new_text: Callable[[], TextStream | None]
    new_constraint: Callable[[], TokenConstraint | None]
    on_finish: Callable[[], None] = lambda: None


NO_WATCH = OutputWatch(lambda: None, lambda: None)


class Engine:
    """Runs requests to their end, one step at a time.

    Threads may share an engine: submitting, stepping and cancelling exclude each other, and
    whoever holds ``lock`` excludes all of them.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        kv_cache: KVCacheManager,
        *,
        limits: EngineLimits,
        end_token_ids: frozenset[int],
        seed: int,
        arrivals: Arrivals | None = None,
    ) -> None:
        """Join the parts.

        Args:
            end_token_ids: the model's own end tokens.
            seed: base of the seeds of requests that bring none, drawn in order of submission.
            arrivals: of graphs that are still to come; None: all are there.
        """
        self.limits = limits
        self.counters = runner.counters
        self._scheduler = scheduler
        self._runner = runner
        self._kv_cache = kv_cache
        self._end_token_ids = end_token_ids
        self._unfinished: dict[str, Request] = {}
        self._numbers = itertools.count()
        self._seeds = random.Random(seed)
        self._arrivals = arrivals or NoArrivals()
        self.lock = threading.RLock()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._unfinished)

    def submit(
        self,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        watch: OutputWatch = NO_WATCH,
    ) -> tuple[Request, ...]:
        """Queue a prompt; return its ``params.n`` samples, each a request of its own.

        Args:
            priority: smaller runs first, where the scheduling policy is priority.
            watch: what follows the tokens of each sample, to end it at a text or by a grammar.

        Raises:
            RequestError: the request can never run; nothing else is affected.
        """
        prompt = check_token_ids(prompt_token_ids, self.limits.vocab_size)
        self._check_params(params, priority)
        max_total_tokens = self._check_size(len(prompt), params)
        # Before the lock: reading a grammar takes long. And before a seed is drawn: a request that
        # is refused must not change what others draw.
        watchers = [(watch.new_text(), watch.new_constraint()) for _ in range(params.n)]
        with self.lock, held_interrupts():
            requests = self._new_requests(
                prompt, params, max_total_tokens, priority, watchers, watch.on_finish
            )
            self._scheduler.add(requests)
            self._unfinished.update((request.request_id, request) for request in requests)
        return requests

    def step(self) -> list[Request]:
        """Run one step; return the requests that got a token, the finished ones included.

        A step that raises loses no request: what got no token in it computes that token again. An
        interrupt waits for its end.
        """
        with self.lock, held_interrupts():
            return self._step()

    def _step(self) -> list[Request]:
        self._arrivals.adopt(self._kv_cache)
        output = self._scheduler.schedule()
        if output is None:
            return []
        try:
            results = self._runner.execute(output)
            self._scheduler.commit(output)
            return self._update(output, results)
        except BaseException:
            self._scheduler.undo(output)
            raise

    def _update(self, output: SchedulerOutput, results: Sequence[StepResult]) -> list[Request]:
        """Give requests what a step gave; return those that got a token."""
        updated = []
        for scheduled, result in zip(output.requests, results, strict=True):
            request = self._unfinished[scheduled.request_id]
            if result.prompt_logprobs:
                request.add_prompt_logprobs(scheduled.num_computed_tokens, result.prompt_logprobs)
            if result.token is not None:
                request.append(result.token)
                updated.append(request)
            if request.is_finished:
                self._forget(request)
                if request.finish_reason is not FinishReason.ERROR:
                    num_output = len(request.output_token_ids)
                    self.counters.add_request(request.num_prompt_tokens, num_output)
        return updated

    def wait_for_graphs(self, timeout_s: float = math.inf) -> None:
        """Take all graphs that are still to come; others may run steps meanwhile.

        One of other bits has come, and is not used.

        Args:
            timeout_s: seconds after which those that are not there are waited for no more.

        Raises:
            SetError: some will never come; the engine goes on without them.
        """
        end = time.monotonic() + timeout_s
        while True:
            with self.lock, held_interrupts():  # another thread may be taking the last one
                has_changed = self._arrivals.adopt(self._kv_cache)
                num_pending, failures = self._arrivals.num_pending, [*self._arrivals.failures]
            if not num_pending or time.monotonic() >= end:
                break
            if not has_changed:
                self._arrivals.wait()
        if failures:
            raise SetError("; ".join(failures))

    def cancel(self, request: Request) -> None:
        """End a request now and free its blocks; a finished one is left alone."""
        with self.lock, held_interrupts():
            if not request.is_finished:
                request.finish(FinishReason.CANCELLED)
                self._forget(request)

    def check_invariants(self) -> None:
        """Assert that the cache agrees with the running requests."""
        held = {r.request_id: r.num_computed_tokens for r in self._scheduler.running}
        self._kv_cache.check_invariants(held)

    def _forget(self, request: Request) -> None:
        self._scheduler.remove(request)
        del self._unfinished[request.request_id]

    def _new_requests(
        self,
        prompt: tuple[int, ...],
        params: SamplingParams,
        max_total_tokens: int,
        priority: int,
        watchers: Sequence[tuple[TextStream | None, TokenConstraint | None]],
        on_finish: Callable[[], None],
    ) -> tuple[Request, ...]:
        end_token_ids = params.end_token_ids(self._end_token_ids)
        seed = self._seeds.getrandbits(64) if params.seed is None else params.seed
        first = next(self._numbers)
        numbers = [first, *(next(self._numbers) for _ in range(params.n - 1))]
        requests = []
        pairs = zip(numbers, watchers, strict=True)
        for sample, (number, (text, constraint)) in enumerate(pairs):
            state = SamplingState(
                params,
                seed=sample_seed(seed, sample),
                prompt_token_ids=prompt,
                end_token_ids=end_token_ids,
                vocab_size=self.limits.vocab_size,
                constraint=constraint,
            )
            requests.append(
                Request(
                    request_id=f"request-{number}",
                    prompt_token_ids=prompt,
                    params=params,
                    sampling_state=state,
                    end_token_ids=end_token_ids,
                    max_total_tokens=max_total_tokens,
                    sample=sample,
                    prompt_key=first,
                    order=(priority, number),
                    text=text,
                    constraint=constraint,
                    on_finish=on_finish,
                )
            )
        return tuple(requests)

    def _check_params(self, params: SamplingParams, priority: int) -> None:
        check_features(params, self.limits.sampler_features, self.limits.max_logprobs)
        fits = "an integer from -2**63 to 2**63 - 1"
        check_int("priority", priority, fits, low=-MAX_PRIORITY - 1, high=MAX_PRIORITY)
        check_bias(params, params.end_token_ids(self._end_token_ids), self.limits.vocab_size)
        if priority and not self.limits.has_priorities:
            raise RequestError(f"priority is {priority}, but scheduling_policy is fcfs")

    def _check_size(self, num_prompt: int, params: SamplingParams) -> int:
        """Return the most tokens that the request may hold."""
        limit = self.limits.max_model_len
        if num_prompt > limit - 1:
            raise RequestError(
                f"the prompt has {num_prompt} tokens; max_model_len {limit} allows "
                f"{limit - 1} and one new token"
            )
        max_tokens = limit if params.max_tokens is None else params.max_tokens
        max_total_tokens = min(num_prompt + max_tokens, limit)
        self._kv_cache.check_fits(max_total_tokens)
        return max_total_tokens


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the prompt as a tuple.

    Raises:
        RequestError: it is empty, or an entry is no token id of this model.
    """
    if len(token_ids) == 0:
        raise RequestError("the prompt has no tokens; at least one is needed")
    for index, token_id in enumerate(token_ids):
        # Mostly an int, which is told four times faster than what else is integral.
        is_int = type(token_id) is int or (
            isinstance(token_id, Integral) and not isinstance(token_id, bool)
        )
        if not is_int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"prompt token {index} is {value_text(token_id)}; token ids are integers in "
                f"0 .. {vocab_size - 1}"
            )
    return tuple(int(token_id) for token_id in token_ids)
