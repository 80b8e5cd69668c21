"""One request and its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from .constraint import TokenConstraint
from .errors import fault_text, is_fault
from .sampled_token import SampledToken, TokenLogprobs
from .sampling_params import SamplingParams
from .sampling_state import SamplingState


class RequestStatus(Enum):
    """Where a request stands."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


class FinishReason(Enum):
    """Why a request ended."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"


class TextStream(Protocol):
    """The text of a request as its tokens come."""

    @property
    def text(self) -> str:
        """All of it so far."""

    def push(self, token_id: int) -> bool:
        """Take a token; tell whether the text has come to its end."""

    def take(self) -> str:
        """Return what is certain and was not returned before."""

    def finish(self) -> bool:
        """Note that no token will follow; tell whether the text ends before the tokens do."""


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, its sampling settings and what was generated so far.

    Attributes:
        sample: index of this request among the ``params.n`` of one prompt.
        prompt_key: the same for all of these.
        order: smaller runs first: (priority, number of the submission).
        max_total_tokens: bounds prompt and output together.
        on_finish: called once, when the request has ended.
        output_logprobs: one per output token, where the settings ask for them.
        prompt_logprobs: one per prompt token behind the first, where they ask for those.
        num_computed_tokens: tokens whose keys and values are in the cache: real tokens only,
            padding never enters.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    sampling_state: SamplingState
    end_token_ids: frozenset[int]
    max_total_tokens: int
    sample: int
    prompt_key: int
    order: tuple[int, int]
    text: TextStream | None = None
    constraint: TokenConstraint | None = None
    on_finish: Callable[[], None] = lambda: None
    output_token_ids: list[int] = field(default_factory=list)
    output_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    num_computed_tokens: int = 0
    num_preemptions: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None
    error: str | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def num_uncomputed_tokens(self) -> int:
        """Tokens that are not in the cache yet."""
        return self.num_tokens - self.num_computed_tokens

    @property
    def is_scoring(self) -> bool:
        """Whether logprobs of the prompt are asked for and not known yet."""
        is_asked = self.params.prompt_logprobs is not None and self.sample == 0
        return is_asked and len(self.prompt_logprobs) < self.num_prompt_tokens - 1

    @property
    def num_prefill_tokens(self) -> int:
        """Tokens to run in the phase that the request is in, decoding aside.

        The last token of a prompt that is scored runs later: what is behind it is drawn.
        """
        if self.is_scoring:
            return self.num_prompt_tokens - 1 - self.num_computed_tokens
        return self.num_uncomputed_tokens

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status is RequestStatus.FINISHED

    def token_ids(self, start: int, end: int) -> Sequence[int]:
        """Return the tokens at these positions, of the prompt and the output."""
        num_prompt = len(self.prompt_token_ids)
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : end - num_prompt]
        generated = self.output_token_ids[: max(0, end - num_prompt)]
        return (*self.prompt_token_ids[start:end], *generated)

    def append(self, sampled: SampledToken) -> None:
        """Take a generated token and end the request if it is the last one."""
        token_id = sampled.token_id
        if token_id < 0:
            self.fail(
                self.sampling_state.fault
                or "the model's logits for the next token are not numbers, or nothing that the "
                "request allows is possible"
            )
            return
        self.output_token_ids.append(token_id)
        if sampled.logprobs is not None:
            self.output_logprobs.append(sampled.logprobs)
        try:
            is_end = self._is_end(token_id)
        except BaseException as error:
            if not is_fault(error):
                raise
            self.fail(f"the text or the grammar of the output failed: {fault_text(error)}")
            return
        if is_end:
            self.finish(FinishReason.STOP)
        elif self.num_tokens >= self.max_total_tokens:
            self.finish(FinishReason.LENGTH)

    def add_prompt_logprobs(self, start: int, logprobs: Sequence[TokenLogprobs]) -> None:
        """Take the logprobs of the prompt tokens behind positions ``start ..``."""
        self.prompt_logprobs[start : start + len(logprobs)] = logprobs

    def fail(self, error: str) -> None:
        """End the request with an error of its own."""
        if not self.is_finished:
            self.error = error
            self.finish(FinishReason.ERROR)

    def finish(self, reason: FinishReason) -> None:
        """End the request; the first reason stays."""
        if self.is_finished:
            return
        is_stop = self._finish_text()
        reason = FinishReason.STOP if is_stop and reason is FinishReason.LENGTH else reason
        self.finish_reason = reason if self.error is None else FinishReason.ERROR
        # Behind all else: once it is set, other threads read the rest.
        self.status = RequestStatus.FINISHED
        self.on_finish()

    def _finish_text(self) -> bool:
        """Tell whether the text ends before the tokens do."""
        try:
            return self.text is not None and self.text.finish()
        except BaseException as error:
            if not is_fault(error):
                raise
            self.error = self.error or f"the text of the output failed: {fault_text(error)}"
            return False

    def _is_end(self, token_id: int) -> bool:
        """Tell whether the request ends with this token: an end token, a text or a grammar."""
        if token_id in self.end_token_ids:
            return True
        self.sampling_state.append(token_id)
        is_text_end = self.text is not None and self.text.push(token_id)
        return is_text_end or (self.constraint is not None and self.constraint.is_complete)
