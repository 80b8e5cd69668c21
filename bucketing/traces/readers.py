"""Reads a trace whatever its format, which the first line tells."""

from __future__ import annotations

from collections.abc import Mapping

from .counters import VERSION_KEY, read_counted_requests
from .csv_columns import header_names
from .csv_traces import csv_format, read_csv
from .json_text import NotJson
from .mooncake import parse_object, read_mooncake
from .text import ByteStream, TraceText
from .trace import Trace

BATCH_KEY = "body"
PROMPT_KEYS = frozenset({"prompt", "prompt_token_ids", "messages", BATCH_KEY})
"""Keys of requests as texts, one of which each line of a prompt or batch file has."""
QUOTED_VERSION_KEY = f'"{VERSION_KEY}"'.encode()


def read_trace(stream: ByteStream, source: str) -> Trace:
    """Read a trace; its ``warnings`` say what is odd about it.

    Args:
        stream: of a text, not compressed.
        source: its name for people.

    Raises:
        TraceError: it is no trace, of no known format, or wrong somewhere; in one line.
    """
    text = TraceText.read(stream, source)
    if not text.first_line.startswith((b"{", b"[")):
        return read_csv(text)
    if QUOTED_VERSION_KEY in text.data:
        return read_counted_requests(text)
    if holds_prompts(text.first_line):
        problem = "holds texts, whose tokens only the tokenizer of a model can count"
        raise text.error(problem, text.line_at(text.start))
    return read_mooncake(text)


def holds_prompts(first_line: bytes) -> bool:
    """Tell whether a file that begins with this line is one of prompts as JSON lines."""
    return not PROMPT_KEYS.isdisjoint(_object(first_line))


def holds_batch(first_line: bytes) -> bool:
    """Tell whether a file that begins with this line is an OpenAI batch."""
    return BATCH_KEY in _object(first_line)


def is_trace(first_line: bytes) -> bool:
    """Tell whether a file that begins with this line looks like a trace."""
    if first_line.startswith(b"{"):
        return not holds_prompts(first_line)
    try:
        return csv_format(header_names(first_line)) is not None
    except UnicodeDecodeError:
        return False


def _object(line: bytes) -> Mapping[str, object]:
    try:
        return parse_object(line)
    except NotJson:
        return {}
