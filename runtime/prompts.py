"""Prompts in the forms in which callers give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from numbers import Integral
from typing import TypeGuard, cast

import numpy as np

from .conversation import Conversation, Message
from .errors import NoriaError

Prompt = str | Sequence[int] | Sequence[Message] | Conversation
"""A text, token ids, or a conversation that the chat template renders."""


def prompt_list(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """Return the prompts; one alone is a text, or begins with a token id or a message.

    Raises:
        NoriaError: it is nothing of the kind.
    """
    if isinstance(prompts, np.ndarray):
        prompts = prompts.tolist()
    if isinstance(prompts, str | Conversation):
        return [prompts]
    is_wrong = isinstance(prompts, Mapping | Set | bytes | bytearray)
    if is_wrong or not isinstance(prompts, Iterable):
        raise NoriaError(
            f"prompts are a text, a list of token ids, a list of messages, or a list of those, "
            f"not {type(prompts).__name__}"
        )
    given = list(prompts)
    is_one = bool(given) and isinstance(given[0], Integral | Mapping)
    return cast("list[Prompt]", [given] if is_one else given)


def is_messages(prompt: Sequence[object]) -> TypeGuard[Sequence[Message]]:
    """Tell whether a prompt that is a list is one of messages."""
    return bool(prompt) and isinstance(prompt[0], Mapping)
