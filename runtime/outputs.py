"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass

from .sampled_token import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer to a prompt.

    Attributes:
        token_ids: generated ids, a final end token included.
        text: their text up to the end token or stop string; None without a tokenizer.
        finish_reason: "stop" (an end token, a stop string or the end of a grammar), "length"
            (``max_tokens`` or ``max_model_len``), "cancelled", or "error".
        logprobs: one per token, where ``logprobs`` asks for them.
        error: what went wrong in the middle; None otherwise.
    """

    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One prompt and its ``n`` answers, all ended.

    Attributes:
        prompt: the text that was given; None for a prompt of token ids.
        completions: one per sample; none where the request was refused.
        prompt_logprobs: one per token behind the first, where ``prompt_logprobs`` asks for them.
        error: why the request was refused, or what went wrong with an answer; None otherwise.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    completions: tuple[Completion, ...] = ()
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    error: str | None = None

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Ids of the first answer."""
        return self.completions[0].token_ids if self.completions else ()

    @property
    def text(self) -> str | None:
        """Text of the first answer."""
        return self.completions[0].text if self.completions else None

    @property
    def finish_reason(self) -> str:
        """Why the first answer ended; "error" where there is none."""
        return self.completions[0].finish_reason if self.completions else "error"
