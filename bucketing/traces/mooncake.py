"""Mooncake traces: a JSON object per line, with hashes of the blocks of each prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .json_text import NotJson, parse_json
from .kinds import MAX_DECIMAL, MAX_LEN
from .requests import Requests, time_order, trace_of
from .text import TraceText, shown
from .trace import Ints, Trace

PREFIX_BLOCK = 512
"""Tokens that one of ``hash_ids`` stands for."""
NEEDED = ("timestamp", "input_length", "output_length")
HASHES = "hash_ids"
FORM = f"must be an object with {', '.join(NEEDED)} and maybe {HASHES}"

HashIds = Sequence[int | str]


def read_mooncake(text: TraceText) -> Trace:
    """Read requests; without ``hash_ids`` nothing is known of prefixes.

    Raises:
        TraceError: a line is no such object.
    """
    lines, rows, hashes = [], [], []
    for number, line in text.lines():
        record = _record(text, number, line)
        lines.append(number)
        rows.append(_values(text, number, record))
        hashes.append(_hash_ids(text, number, record))
    times, prompts, outputs = (np.array(column) for column in zip(*rows, strict=True))
    prefixes = _prefixes(text, lines, times, prompts, hashes)
    requests = Requests(np.array(lines), prompts, outputs, times / 1000, prefixes)
    return trace_of(text, requests)


def cached_prefixes(prompt_lens: Ints, hash_ids: Sequence[HashIds]) -> Ints:
    """Return the tokens of each prompt that an unbounded prefix cache has by then.

    Only full blocks are found again, and one token at least is left to compute.

    Args:
        prompt_lens: in order of arrival.
        hash_ids: of each prompt's blocks; equal ones stand for equal prompts up to there.
    """
    seen: set[int | str] = set()
    hits = []
    for ids in hash_ids:
        hits.append(next((n for n, block in enumerate(ids) if block not in seen), len(ids)))
        seen.update(ids)
    found = np.minimum(np.array(hits, np.int64), (prompt_lens - 1) // PREFIX_BLOCK)
    return found * PREFIX_BLOCK


def parse_object(line: bytes) -> Mapping[str, Any]:
    """Return the JSON object in a line.

    Raises:
        NotJson: there is none; says why.
    """
    value = parse_json(line)
    if not isinstance(value, dict):
        raise NotJson(f"is {shown(value)}; {FORM}")
    return value


def _record(text: TraceText, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        record = parse_object(line)
    except NotJson as error:
        raise text.error(str(error), number) from None
    missing = [key for key in NEEDED if key not in record]
    if missing:
        raise text.error(f"{missing[0]} is missing; {FORM}", number)
    return record


def _values(text: TraceText, number: int, record: Mapping[str, Any]) -> tuple[float, int, int]:
    time = record["timestamp"]
    if type(time) not in (int, float) or not -MAX_DECIMAL <= time <= MAX_DECIMAL:
        raise text.error(f"timestamp is {shown(time)}; must be milliseconds", number)
    prompt, output = (_length(text, number, record, key) for key in NEEDED[1:])
    return float(time), prompt, output


def _length(text: TraceText, number: int, record: Mapping[str, Any], key: str) -> int:
    value = record[key]
    if type(value) is not int or not 1 <= value <= MAX_LEN:
        fits = f"must be an integer from 1 to {MAX_LEN}"
        raise text.error(f"{key} is {shown(value)}; {fits}", number)
    return value


def _hash_ids(text: TraceText, number: int, record: Mapping[str, Any]) -> HashIds | None:
    ids = record.get(HASHES)
    if ids is None:
        return None
    if not isinstance(ids, list) or not set(map(type, ids)) <= {int, str}:
        raise text.error(f"{HASHES} is {shown(ids)}; must be a list of integers", number)
    return ids


def _prefixes(
    text: TraceText,
    lines: Sequence[int],
    times: np.ndarray[Any, Any],
    prompts: Ints,
    hashes: Sequence[HashIds | None],
) -> Ints | None:
    """Return the prefixes in order of lines, though caches fill in order of arrival."""
    known = [ids for ids in hashes if ids is not None]
    if not known:
        return None
    if len(known) < len(hashes):
        line = lines[hashes.index(None)]
        raise text.error(f"{HASHES} is missing, which other lines have", line)
    order = time_order(times)
    prefixes = np.empty_like(prompts)
    prefixes[order] = cached_prefixes(prompts[order], [known[row] for row in order])
    return prefixes
