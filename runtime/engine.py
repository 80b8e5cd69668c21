"""The loop: submit, schedule, execute, update. Knows token ids only, no text.

The engine hands plain values between the scheduler and the model runner, which do not know each
other.
"""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral

from .errors import RequestError
from .kv_cache_manager import KVCacheManager
from .model_runner import ModelRunner
from .request import FinishReason, Request
from .sampler_features import check_features
from .sampling_params import SamplingParams
from .scheduler import Scheduler


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What a request may be at most, named as in the configuration."""

    vocab_size: int
    max_model_len: int
    max_prompt_tokens: int
    sampler_features: frozenset[str]
    max_logprobs: int = 20


class Engine:
    """Runs requests to their end, one step at a time.

    Threads may share an engine: submitting, stepping and cancelling exclude each other.
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
    ) -> None:
        """Join the parts.

        Args:
            end_token_ids: the model's own end tokens.
            seed: base of the seeds of requests that bring none, drawn in order of submission.
        """
        self.limits = limits
        self._scheduler = scheduler
        self._runner = runner
        self._kv_cache = kv_cache
        self._end_token_ids = end_token_ids
        self._unfinished: dict[str, Request] = {}
        self._ids = itertools.count()
        self._seeds = random.Random(seed)
        self._lock = threading.RLock()

    @property
    def has_unfinished(self) -> bool:
        """Whether any request waits or runs."""
        return bool(self._unfinished)

    def submit(self, prompt_token_ids: Sequence[int], params: SamplingParams) -> Request:
        """Queue a request.

        Raises:
            RequestError: the request can never run; nothing else is affected.
        """
        prompt = check_token_ids(prompt_token_ids, self.limits.vocab_size)
        check_features(params, self.limits.sampler_features, self.limits.max_logprobs)
        _check_stop_ids(params, self.limits.vocab_size)
        max_total_tokens = self._check_size(len(prompt), params)
        with self._lock:
            request = self._new_request(prompt, params, max_total_tokens)
            self._scheduler.add(request)
            self._unfinished[request.request_id] = request
        return request

    def step(self) -> list[Request]:
        """Run one step; return the requests that got a token, the finished ones included.

        A step that raises changes nothing: the same requests can run again.
        """
        with self._lock:
            return self._step()

    def _step(self) -> list[Request]:
        output = self._scheduler.schedule()
        if output is None:
            return []
        try:
            tokens = self._runner.execute(output)
        except BaseException:
            self._scheduler.undo(output)
            raise
        updated = []
        for scheduled, token in zip(output.requests, tokens, strict=True):
            request = self._unfinished[scheduled.request_id]
            request.num_computed_tokens = scheduled.num_context_tokens
            if token is not None:
                request.append(token.token_id)
            if request.is_finished:
                self._forget(request)
            updated.append(request)
        return updated

    def cancel(self, request: Request) -> None:
        """End a request now and free its blocks; a finished one is left alone."""
        with self._lock:
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

    def _new_request(
        self, prompt: tuple[int, ...], params: SamplingParams, max_total_tokens: int
    ) -> Request:
        end_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            end_token_ids |= self._end_token_ids
        return Request(
            request_id=f"request-{next(self._ids)}",
            prompt_token_ids=prompt,
            params=params,
            seed=self._seeds.getrandbits(64) if params.seed is None else params.seed,
            end_token_ids=end_token_ids,
            max_total_tokens=max_total_tokens,
        )

    def _check_size(self, num_prompt: int, params: SamplingParams) -> int:
        """Return the most tokens that the request may hold."""
        limits = self.limits
        if num_prompt > limits.max_model_len - 1:
            raise RequestError(
                f"the prompt has {num_prompt} tokens; max_model_len {limits.max_model_len} allows "
                f"{limits.max_model_len - 1} and one new token"
            )
        if num_prompt > limits.max_prompt_tokens:
            raise RequestError(
                f"the prompt has {num_prompt} tokens; the largest of num_batched_tokens_buckets "
                f"is {limits.max_prompt_tokens}, and a prompt runs in one step"
            )
        max_tokens = limits.max_model_len if params.max_tokens is None else params.max_tokens
        max_total_tokens = min(num_prompt + max_tokens, limits.max_model_len)
        self._kv_cache.check_fits(max_total_tokens)
        return max_total_tokens


def _check_stop_ids(params: SamplingParams, vocab_size: int) -> None:
    for token_id in params.stop_token_ids:
        if token_id >= vocab_size:
            raise RequestError(
                f"stop_token_ids holds {token_id}; token ids of this model are "
                f"0 .. {vocab_size - 1}"
            )


def check_token_ids(token_ids: Sequence[int], vocab_size: int) -> tuple[int, ...]:
    """Return the prompt as a tuple.

    Raises:
        RequestError: it is empty, or an entry is no token id of this model.
    """
    if len(token_ids) == 0:
        raise RequestError("the prompt has no tokens; at least one is needed")
    for index, token_id in enumerate(token_ids):
        is_int = isinstance(token_id, Integral) and not isinstance(token_id, bool)
        if not is_int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"prompt token {index} is {token_id!r}; token ids are integers in "
                f"0 .. {vocab_size - 1}"
            )
    return tuple(int(token_id) for token_id in token_ids)
