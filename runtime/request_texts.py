"""What requests need of the model's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np

from .conversation import Conversation
from .errors import RequestError
from .models.tokenizer import Tokenizer
from .prompts import Prompt, is_messages


class RequestTexts:
    """Turns what callers write into what the engine takes, for one model."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        """Use the model's tokenizer; with None, prompts are token ids and outputs have no text."""
        self._tokenizer = tokenizer

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer.

        Raises:
            RequestError: it has none.
        """
        if self._tokenizer is None:
            raise RequestError("the model has no tokenizer: give prompts as lists of token ids")
        return self._tokenizer

    def token_ids(self, prompt: Prompt) -> Sequence[int]:
        """Return the ids of a prompt; ids themselves are left to the engine to judge.

        Raises:
            RequestError: it is no prompt, or the tokenizer or the chat template refuses it.
        """
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        if isinstance(prompt, Conversation):
            return self.tokenizer.encode_chat(prompt.messages, prompt.tools)
        if isinstance(prompt, np.ndarray):
            prompt = prompt.tolist()
        if not isinstance(prompt, Sequence) or isinstance(prompt, bytes | bytearray):
            raise RequestError(
                f"a prompt is a text, a list of token ids or a list of messages, not "
                f"{type(prompt).__name__}"
            )
        if is_messages(prompt):
            return self.tokenizer.encode_chat(prompt)
        return cast("Sequence[int]", prompt)
