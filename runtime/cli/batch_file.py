"""OpenAI batch files: JSON lines whose ``body`` is a request to a chat or a completion."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ..conversation import Conversation
from ..errors import RequestError
from ..sampling_params import SamplingParams
from .prompt_file import Prompt, PromptLine, json_object, list_of, numbered_lines

BODY_KEY = "body"
MAX_TOKENS_KEYS = ("max_completion_tokens", "max_tokens")
"""Of which the first that is given counts, as it does there."""


def read_batch(path: Path, params: SamplingParams) -> list[PromptLine]:
    """Read the prompts of every line that is not blank; a line of several gives several.

    Of a body, what tells its work is read: prompt or messages, ``n`` and the most new tokens.
    """
    lines: list[PromptLine] = []
    for number, data in numbered_lines(path):
        try:
            for request, settings in _requests(data, params):
                lines.append(PromptLine(len(lines), number, None, request, settings))
        except RequestError as error:
            failed = PromptLine(len(lines), number, None, None, params, error=str(error))
            lines.append(failed)
    return lines


def _requests(data: bytes, params: SamplingParams) -> Iterator[tuple[Prompt, SamplingParams]]:
    try:
        body = json_object(data.decode("utf-8")).get(BODY_KEY)
    except UnicodeDecodeError as error:
        raise RequestError(f"byte {error.start} is not UTF-8") from None
    if not isinstance(body, dict):
        raise RequestError(f"{BODY_KEY} is missing; must be an object")
    settings = replace(params, **_settings(body))  # type: ignore[arg-type]
    return ((prompt, settings) for prompt in _prompts(body))


def _settings(body: Mapping[str, object]) -> dict[str, object]:
    limits = [body[key] for key in MAX_TOKENS_KEYS if body.get(key) is not None]
    settings = {"max_tokens": limits[0]} if limits else {}
    return settings if body.get("n") is None else {**settings, "n": body["n"]}


def _prompts(body: Mapping[str, object]) -> list[Prompt]:
    if "messages" in body:
        has_tools = body.get("tools") is not None
        tools = list_of(body, "tools", dict, "an object") if has_tools else ()
        return [Conversation(list_of(body, "messages", dict, "an object"), tools)]
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if not isinstance(prompt, list) or not prompt:
        raise RequestError(f"{BODY_KEY} holds neither messages nor a prompt")
    if isinstance(prompt[0], str):
        return list_of(body, "prompt", str, "a string")
    if isinstance(prompt[0], list):
        each = list_of(body, "prompt", list, "a list")
        return [list_of({"prompt": ids}, "prompt", int, "an integer") for ids in each]
    return [list_of(body, "prompt", int, "an integer")]
