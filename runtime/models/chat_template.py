"""Chat templates: messages to prompt text, in a sandbox, as Hugging Face renders them."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import RequestError

Message = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A Jinja template and the special tokens that it may name (``bos_token``, ...)."""

    source: str
    special_tokens: Mapping[str, str] = field(default_factory=dict)

    def render(self, messages: Sequence[Message]) -> str:
        """Return the prompt text of ``messages``, up to where the answer begins.

        A content that is a list of text parts is joined by newlines first.

        Raises:
            RequestError: the messages are malformed, or the template refuses them or fails; the
                text says "chat template" and quotes the template's own.
        """
        if not messages:
            raise RequestError("chat template: messages is empty")
        plain = [_with_text(index, message) for index, message in enumerate(messages)]
        try:
            template = _environment().from_string(self.source)
            return template.render(self.special_tokens, messages=plain, add_generation_prompt=True)
        except Exception as error:  # a template is a program of the model's: anything can fail
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RequestError(f"chat template: {reason}") from error


class GenerationBlock(Extension):
    """``{% generation %}`` marks what an assistant said, for training; here it is transparent."""

    tags = {"generation"}  # noqa: RUF012 - the name and type that jinja2 prescribes

    def parse(self, parser: Parser) -> list[Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _with_text(index: int, message: Message) -> dict[str, object]:
    """Return the message with plain text as content."""
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"chat template: message {index} must be an object with a role")
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return dict(message)
    if not isinstance(content, list):
        raise RequestError(
            f"chat template: content of message {index} must be a string or a list of text parts, "
            f"not {content!r}"
        )
    return {**message, "content": "\n".join(_part_text(index, part) for part in content)}


def _part_text(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(
            f"chat template: message {index} holds a part that is not text: {part!r}"
        )
    return text


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Write JSON as it is: jinja2's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(format: str) -> str:
    return datetime.datetime.now().strftime(format)
