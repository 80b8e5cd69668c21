"""Chat templates: messages to prompt text, as Hugging Face renders them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import jinja2
from jinja2 import nodes

from ..conversation import Message, Tool
from ..errors import RequestError
from ..value_text import value_text
from .chat_environment import STEPS, ChatEnvironment, StepBudget


class ChatTemplate:
    """A Jinja template and the special tokens that it may name (``bos_token``, ...)."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        *,
        tool_source: str | None = None,
    ) -> None:
        """Compile nothing yet: a broken template is an error of the requests that use it.

        ``tool_source`` is the template of requests with tools, where the model has one for them.
        """
        self.source = source
        self._tool_source = tool_source or source
        self._special_tokens = special_tokens or {}
        self._environment = ChatEnvironment()

    def render(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt text of ``messages``, up to where the answer begins.

        A content that is a list of text parts is joined by newlines first. All else that messages
        and ``tools`` hold reaches the template as it is.

        Raises:
            RequestError: the messages or tools are malformed, or the template refuses them, fails
                or takes no tools; the text says "chat template" and quotes the template's own.
        """
        if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
            raise RequestError(f"chat template: messages is {value_text(messages)}; must be a list")
        if not messages:
            raise RequestError("chat template: messages is empty")
        plain = [_with_text(index, message) for index, message in enumerate(messages)]
        _check_tools(tools)
        try:
            if tools and not self._names_tools:
                raise jinja2.TemplateError("the model's has no place for tools")
            template = self._tool_template if tools else self._template
            return template.render(
                {**self._special_tokens, STEPS: StepBudget()},
                messages=plain,
                tools=list(tools) or None,
                documents=None,
                add_generation_prompt=True,
            )
        except Exception as error:  # a template is a program of the model's: anything can fail
            reason = " ".join(str(error).split()) or type(error).__name__
            raise RequestError(f"chat template: {reason}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        return self._environment.from_string(self.source)

    @cached_property
    def _tool_template(self) -> jinja2.Template:
        return self._environment.from_string(self._tool_source)

    @cached_property
    def _names_tools(self) -> bool:
        names = self._environment.parse(self._tool_source).find_all(nodes.Name)
        return any(name.name == "tools" for name in names)


def _check_tools(tools: object) -> None:
    if not isinstance(tools, Sequence) or isinstance(tools, str | bytes):
        raise RequestError(f"chat template: tools is {value_text(tools)}; must be a list")
    for index, tool in enumerate(tools):
        function = tool.get("function", tool) if isinstance(tool, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RequestError(
                f"chat template: tool {index} must be an object like "
                '{"type": "function", "function": {"name": ..., "parameters": ...}}, '
                f"not {value_text(tool)}"
            )


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
            f"not {value_text(content)}"
        )
    return {**message, "content": "\n".join(_part_text(index, part) for part in content)}


def _part_text(index: int, part: object) -> str:
    if isinstance(part, str):
        return part
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    if not isinstance(text, str):
        raise RequestError(
            f"chat template: message {index} holds a part that is not text: {value_text(part)}"
        )
    return text
