"""A prompt in messages, as chat templates take it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Message = Mapping[str, object]
"""``{"role": ..., "content": ...}``, and whatever else the chat template reads."""

Tool = Mapping[str, object]
"""A function that the model may call: ``{"type": "function", "function": {"name": ...}}``."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, and the tools that the model may call in its answer."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
