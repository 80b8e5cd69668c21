"""What a caller gets back."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """One finished request.

    Attributes:
        prompt: the text that was given; None for a prompt of token ids.
        token_ids: generated ids, a final end token included.
        text: their text, special tokens left out; None without a tokenizer.
        finish_reason: "stop" (an end token), "length" (``max_tokens`` or ``max_model_len``),
            "cancelled", or "error".
        error: why the request was refused; None otherwise.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str | None
    finish_reason: str
    error: str | None = None
