"""Keys of compiled sets: JSON values that are compared field by field. Imports no torch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ..value_text import key_text

Key = dict[str, object]
"""Of JSON values only: what a manifest's text gives back is equal to what went in."""

MAX_TEXT = 48
"""Characters of a value in a line of ``key_differences``."""
MAX_RANGES = 4
"""Of the entries of a list that differ alike, and ways to differ that are listed."""
CONTEXT = 12
"""Characters before the first that differs, where a value is shortened."""
MISSING = "missing"


def key_digest(key: Mapping[str, object]) -> str:
    """Return the sha256 of a key: equal keys, whatever the order of their fields, have one."""
    return hashlib.sha256(_json(key).encode()).hexdigest()


def key_differences(old: Mapping[str, object], new: Mapping[str, object]) -> list[str]:
    """Return one line per field that differs, ``old`` being the set's key and ``new`` the wanted.

    >>> key_differences({"model": {"heads": 4, "bias": False}}, {"model": {"heads": 8}})
    ['model.bias: false in the set, missing here', 'model.heads: 4 in the set, 8 here']
    """
    return [f"{one.path}: {one.old} in the set, {one.new} here" for one in _fields(old, new)]


@dataclass(frozen=True, slots=True)
class _Difference:
    """One place where two keys differ: its path, and the text of both values."""

    path: str
    old: str
    new: str


def _differences(old: object, new: object) -> Iterator[_Difference]:
    """Yield what differs between two values; paths start with a dot, a bracket or are empty."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from (replace(one, path=f".{one.path}") for one in _fields(old, new))
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        yield from _entries(old, new)
    elif _json(old) != _json(new):
        yield _Difference("", *_texts(old, new))


def _fields(old: Mapping[str, object], new: Mapping[str, object]) -> Iterator[_Difference]:
    for name in sorted(old.keys() | new.keys()):
        path = key_text(name)
        if name not in new:
            yield _Difference(path, _shortened(_json(old[name]), "")[0], MISSING)
        elif name not in old:
            yield _Difference(path, MISSING, _shortened(_json(new[name]), "")[0])
        else:
            found = _differences(old[name], new[name])
            yield from (replace(one, path=path + one.path) for one in found)


def _entries(old: Sequence[object], new: Sequence[object]) -> Iterator[_Difference]:
    """Yield what differs between lists of one length; entries that differ alike share a line.

    Where the same field differs in too many ways, only the first is shown.
    """
    by_path: dict[str, dict[_Difference, list[int]]] = {}
    for index, (one, other) in enumerate(zip(old, new, strict=True)):
        for difference in _differences(one, other):
            by_path.setdefault(difference.path, {}).setdefault(difference, []).append(index)
    for path, alike in by_path.items():
        for difference, indices in alike.items():
            text = _index_text(indices)
            if len(alike) > MAX_RANGES:
                text = f"{indices[0]} and {sum(map(len, alike.values())) - 1} more"
            yield replace(difference, path=f"[{text}]{path}")
            if len(alike) > MAX_RANGES:
                break


def _index_text(indices: Sequence[int]) -> str:
    """Write ascending numbers as ranges.

    >>> _index_text([0, 1, 2, 5]), _index_text(range(0, 60, 2))
    ('0-2,5', '0,2,4,6 and 26 more')
    """
    runs = groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0])
    ranges = [[index for _, index in run] for _, run in runs]
    texts = [f"{one[0]}-{one[-1]}" if len(one) > 1 else str(one[0]) for one in ranges]
    num_more = sum(map(len, ranges[MAX_RANGES:]))
    more = f" and {num_more} more" if num_more else ""
    return ",".join(texts[:MAX_RANGES]) + more


def _texts(old: object, new: object) -> tuple[str, str]:
    """Write two values that differ; long lists are told apart by their lengths."""
    texts = _json(old), _json(new)
    if isinstance(old, list) and isinstance(new, list) and max(map(len, texts)) > MAX_TEXT:
        return f"{len(old)} entries", f"{len(new)} entries"
    return _shortened(*texts)


def _shortened(old: str, new: str) -> tuple[str, str]:
    """Cut long texts around the first character that differs."""
    longest = max(len(old), len(new))
    if longest <= MAX_TEXT:
        return old, new
    pairs = enumerate(zip(old, new, strict=False))
    same = next((at for at, (one, other) in pairs if one != other), min(len(old), len(new)))
    start = max(0, min(same - CONTEXT, longest - MAX_TEXT))
    first, second = (_cut(text, start) for text in (old, new))
    return first, second


def _cut(text: str, start: int) -> str:
    before = "..." if start else ""
    after = "..." if len(text) > start + MAX_TEXT else ""
    return f"{before}{text[start : start + MAX_TEXT]}{after}"


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
