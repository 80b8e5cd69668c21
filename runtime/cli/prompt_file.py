"""Prompt files: a text or JSON object per line, each with its own verdict.

A line that cannot run carries the reason; it never keeps the others from running. Nothing here
knows a model, so a chat is still a list of messages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..conversation import Conversation
from ..errors import RequestError
from ..json_text import parse_json
from ..sampling_params import SamplingParams
from ..text_files import open_text, text_suffix
from ..typed_reader import nearest
from .failures import UserMistake, user_file

BOM = b"\xef\xbb\xbf"
JSON_LINES = (".jsonl", ".ndjson")
PROMPT_KEYS = ("prompt", "prompt_token_ids", "messages")
TOOLS_KEY = "tools"
PRIORITY_KEY = "priority"
SAMPLING_KEYS = tuple(field.name for field in fields(SamplingParams))

Prompt = str | Sequence[int] | Conversation
"""A text, token ids, or a conversation."""


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One line of a prompt file that is not blank.

    Attributes:
        index: position among them, from 0.
        number: line in the file, from 1, blank ones counted.
        prompt: the text as written; None for token ids and messages.
        request: what to run; None where ``error`` says why not.
        priority: smaller runs first, where the scheduling policy is priority.
    """

    index: int
    number: int
    prompt: str | None
    request: Prompt | None
    params: SamplingParams
    priority: int = 0
    error: str | None = None


def read_prompts(path: Path, params: SamplingParams, *, chat: bool) -> list[PromptLine]:
    """Read every line that is not blank.

    Args:
        path: a text file, or JSON lines by its suffix; compressed by gzip or not.
        params: sampling settings that a line's own replace.
        chat: whether a text is the only message of a conversation.

    Raises:
        UserMistake: the file cannot be read or has no prompt.
    """
    suffix = text_suffix(path)
    if suffix == ".json":
        raise UserMistake(f"{path}: prompts are text or JSON lines, one per line (.txt, .jsonl)")
    parse = _parse_json if suffix in JSON_LINES else _parse_text
    lines: list[PromptLine] = []
    for number, data in numbered_lines(path):
        line = PromptLine(len(lines), number, None, None, params)
        try:
            line = parse(line, data.decode("utf-8"))
        except UnicodeDecodeError as error:
            line = replace(line, error=f"byte {error.start} is not UTF-8")
        except RequestError as error:
            line = replace(line, error=str(error))
        if chat and isinstance(line.request, str):
            line = replace(line, request=Conversation([{"role": "user", "content": line.request}]))
        lines.append(line)
    if not lines:
        raise UserMistake(f"{path}: holds no prompt")
    return lines


def numbered_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are not blank, without line ends and byte-order marks."""
    with user_file(path), open_text(path) as file:
        for number, line in enumerate(file, start=1):
            data = line.removeprefix(BOM).rstrip(b"\r\n")
            if data.strip():
                yield number, data


def _parse_text(line: PromptLine, text: str) -> PromptLine:
    return replace(line, prompt=text, request=text)


def _parse_json(line: PromptLine, text: str) -> PromptLine:
    """Fill in a line from its JSON object.

    Raises:
        RequestError: it is no JSON object.
    """
    record = json_object(text)
    prompt = record.get("prompt")
    line = replace(line, prompt=prompt if isinstance(prompt, str) else None)
    try:
        _check_keys(record)
        params = _with_settings(line.params, record)
        priority = _priority(record)
        return replace(line, request=_request(record), params=params, priority=priority)
    except RequestError as error:
        return replace(line, error=str(error))


def json_object(text: str) -> dict[str, object]:
    """Return the object that a line holds.

    Raises:
        RequestError: it holds none.
    """
    try:
        value = parse_json(text, pairs=_unique_keys)
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except RequestError:
        raise
    except UnicodeEncodeError:
        raise RequestError("holds half of a surrogate pair, which is no character") from None
    except (ValueError, RecursionError) as error:
        raise RequestError(f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f'is {_kind(value)}; must be an object like {{"prompt": "..."}}')
    return value


def _unique_keys(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    record = dict(pairs)
    if len(record) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise RequestError(f"{twice}: written twice; keep one")
    return record


def _check_keys(record: Mapping[str, object]) -> None:
    known = [*PROMPT_KEYS, TOOLS_KEY, PRIORITY_KEY, *SAMPLING_KEYS]
    for key in record:
        if key not in known:
            near = nearest(key, known)
            fits = f"did you mean {near}?" if near else f"the keys are {', '.join(known)}"
            raise RequestError(f"{key}: unknown key; {fits}")
    given = [key for key in PROMPT_KEYS if key in record]
    if len(given) != 1:
        found = " and ".join(given) or "none of them"
        raise RequestError(f"one of {', '.join(PROMPT_KEYS)} is needed; there is {found}")
    if TOOLS_KEY in record and given != ["messages"]:
        raise RequestError(f"{TOOLS_KEY}: goes with messages, not with {given[0]}")


def _request(record: Mapping[str, object]) -> Prompt:
    (key,) = (key for key in PROMPT_KEYS if key in record)
    value = record[key]
    if key == "prompt":
        return _text(value)
    if key == "prompt_token_ids":
        return list_of(record, key, int, "an integer")
    messages = list_of(record, key, dict, "an object")
    has_tools = record.get(TOOLS_KEY) is not None
    tools = list_of(record, TOOLS_KEY, dict, "an object") if has_tools else ()
    return Conversation(messages, tools)


def list_of(record: Mapping[str, object], key: str, kind: type, fits: str) -> list[Any]:
    """Return a list with an item at least, all of one type.

    Raises:
        RequestError: the value is no such list.
    """
    value = record[key]
    if not isinstance(value, list) or not value:
        raise RequestError(f"{key} is {_kind(value)}; must be a list, each {fits}")
    for index, item in enumerate(value):
        if type(item) is not kind:
            raise RequestError(f"{key}[{index}] is {_kind(item)}; must be {fits}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise RequestError(f"prompt is {_kind(value)}; must be a string")
    return value


def _priority(record: Mapping[str, object]) -> int:
    value = record.get(PRIORITY_KEY, 0)
    if type(value) is not int:
        raise RequestError(f"{PRIORITY_KEY} is {_kind(value)}; must be an integer")
    return value


def _with_settings(params: SamplingParams, record: Mapping[str, object]) -> SamplingParams:
    settings = {key: value for key, value in record.items() if key in SAMPLING_KEYS}
    token_ids = settings.get("stop_token_ids", [])
    if not isinstance(token_ids, list):
        raise RequestError(f"stop_token_ids is {_kind(token_ids)}; must be a list of integers")
    return replace(params, **settings)  # type: ignore[arg-type]


def _kind(value: object) -> str:
    """Name the type of a JSON value."""
    if value is None or value == []:
        return "null" if value is None else "an empty list"
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "a number")
