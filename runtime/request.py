"""One request and its life."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from .sampling_params import SamplingParams


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


@dataclass(slots=True, eq=False)
class Request:
    """A prompt, its sampling settings and what was generated so far.

    ``num_computed_tokens`` counts tokens whose keys and values are in the cache: real tokens
    only, padding never enters. ``max_total_tokens`` bounds prompt and output together.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    end_token_ids: frozenset[int]
    max_total_tokens: int
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    status: RequestStatus = RequestStatus.WAITING
    finish_reason: FinishReason | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt and generated tokens."""
        return len(self.prompt_token_ids) + len(self.output_token_ids)

    @property
    def is_finished(self) -> bool:
        """Whether the request has ended."""
        return self.status is RequestStatus.FINISHED

    def uncomputed_token_ids(self) -> Sequence[int]:
        """Return the tokens that are not in the cache yet."""
        num_prompt = len(self.prompt_token_ids)
        if self.num_computed_tokens >= num_prompt:
            return self.output_token_ids[self.num_computed_tokens - num_prompt :]
        return (*self.prompt_token_ids[self.num_computed_tokens :], *self.output_token_ids)

    def append(self, token_id: int) -> None:
        """Take a generated token and end the request if it is the last one."""
        self.output_token_ids.append(token_id)
        if token_id in self.end_token_ids:
            self.finish(FinishReason.STOP)
        elif self.num_tokens >= self.max_total_tokens:
            self.finish(FinishReason.LENGTH)

    def finish(self, reason: FinishReason) -> None:
        """End the request; the first reason stays."""
        if not self.is_finished:
            self.status = RequestStatus.FINISHED
            self.finish_reason = reason
