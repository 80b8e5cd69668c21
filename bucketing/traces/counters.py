"""What the runtime counted while it served, read back: requests, steps and time per graph.

``{"noria_counters": 2, "engine": {...}, "prompts": [[prompt_len, output_len, count], ...],
"prefill": [[num_tokens, context_len, num_steps, num_requests], ...],
"decode": [[num_seqs, context_need, num_steps], ...],
"graphs": {label: {"num_steps":, "real_tokens":, "padded_tokens":, "seconds":}}}``

Format 1 is the same without ``engine``, of which then nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..plan_file import PlanFileError
from ..sets.demand import DecodeDemand, PrefillDemand
from .counted_engine import CountedEngine
from .json_text import NotJson, parse_json
from .kinds import MAX_DECIMAL, MAX_LEN
from .requests import Requests, trace_of
from .text import TraceText, shown
from .trace import Ints, Trace

VERSION_KEY = "noria_counters"
VERSION = 2
OLD_VERSION = 1
"""Says nothing of the engine."""
PROMPTS = ("prompt_len", "output_len", "count")
PREFILL = ("num_tokens", "context_len", "num_steps", "num_requests")
DECODE = ("num_seqs", "context_need", "num_steps")
MAY_BE_ZERO = "context_len"


@dataclass(frozen=True, slots=True)
class GraphCounts:
    """What one graph ran.

    Attributes:
        num_steps: times that it ran.
        real_tokens: tokens of requests in them.
        padded_tokens: rows that it computed, padding and real ones.
        seconds: that they took together.
    """

    num_steps: float
    real_tokens: float
    padded_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """Counters of a run.

    Attributes:
        requests: finished ones by their lengths; None: none finished.
        prefill: steps by rows; None: there was none.
        decode: steps by requests and context; None: there was none.
        prefill_steps: rows of (num_tokens, context_len, num_steps, num_requests) ``[n, 4]``.
        graphs: counts by label.
        engine: that counted; None: they do not say which one.
    """

    requests: Trace | None
    prefill: PrefillDemand | None
    decode: DecodeDemand | None
    prefill_steps: Ints
    graphs: Mapping[str, GraphCounts]
    engine: CountedEngine | None = None


def read_counters(text: TraceText) -> Counters:
    """Read counters.

    Raises:
        TraceError: the text is no such JSON; names the line, or the place within.
    """
    record = _document(text)
    prompts = _rows(text, record, "prompts", PROMPTS)
    prefill = _rows(text, record, "prefill", PREFILL)
    decode = _rows(text, record, "decode", DECODE)
    return Counters(
        requests=_requests(text, prompts) if len(prompts) else None,
        prefill=PrefillDemand.of(prefill[:, 0], prefill[:, 2]) if len(prefill) else None,
        decode=DecodeDemand.of(decode[:, 0], decode[:, 1], decode[:, 2]) if len(decode) else None,
        prefill_steps=prefill,
        graphs=_graphs(text, record),
        engine=None if record[VERSION_KEY] == OLD_VERSION else _engine(text, record),
    )


def read_counted_requests(text: TraceText) -> Trace:
    """Read the requests of counters; when each arrived is not among them.

    Raises:
        TraceError: as for ``read_counters``, or no request had finished.
    """
    requests = read_counters(text).requests
    if requests is None:
        raise text.error("prompts is empty; a trace has at least one request")
    return requests


def _document(text: TraceText) -> Mapping[str, Any]:
    try:
        record = parse_json(text.data)
    except NotJson as error:
        raise text.error(str(error), error.line) from None
    version = record.get(VERSION_KEY) if isinstance(record, dict) else None
    if type(version) is not int or version not in (OLD_VERSION, VERSION):
        fits = f"must be {VERSION}, or {OLD_VERSION} as older ones are"
        raise text.error(f"{VERSION_KEY} is {shown(version)}; {fits}")
    assert isinstance(record, dict)
    return record


def _engine(text: TraceText, record: Mapping[str, Any]) -> CountedEngine:
    try:
        return CountedEngine.from_mapping(record.get("engine"))
    except (PlanFileError, OverflowError) as error:
        problem = ascii(" ".join(str(error).split()))[1:-1]
        raise text.error(problem) from None


def _rows(text: TraceText, record: Mapping[str, Any], key: str, names: tuple[str, ...]) -> Ints:
    """Return a list of rows of integers ``[n, len(names)]``."""
    rows = record.get(key, [])
    if not isinstance(rows, list):
        raise text.error(f"{key} is {shown(rows)}; must be a list of [{', '.join(names)}]")
    for index, row in enumerate(rows):
        place = f"{key}[{index}]"
        if not isinstance(row, list) or len(row) != len(names):
            raise text.error(f"{place} is {shown(row)}; must be [{', '.join(names)}]")
        for name, value in zip(names, row, strict=True):
            low = 0 if name == MAY_BE_ZERO else 1
            if type(value) is not int or not low <= value <= MAX_LEN:
                fits = f"must be an integer from {low} to {MAX_LEN}"
                raise text.error(f"{place}: {name} is {shown(value)}; {fits}")
    return np.array(rows, np.int64).reshape(len(rows), len(names))


def _requests(text: TraceText, rows: Ints) -> Trace:
    prompts, outputs, counts = rows.T
    lines = np.ones(len(rows), np.int64)
    return trace_of(text, Requests(lines, prompts, outputs, weights=counts.astype(np.float64)))


def _graphs(text: TraceText, record: Mapping[str, Any]) -> Mapping[str, GraphCounts]:
    graphs = record.get("graphs", {})
    if not isinstance(graphs, dict):
        raise text.error(f"graphs is {shown(graphs)}; must be an object")
    return {label: _graph(text, label, counts) for label, counts in graphs.items()}


def _graph(text: TraceText, label: str, counts: object) -> GraphCounts:
    place = f"graphs: {shown(label)}"
    if not isinstance(counts, dict):
        raise text.error(f"{place} is {shown(counts)}; must be an object")
    names = [field.name for field in fields(GraphCounts)]
    return GraphCounts(*(_count(text, f"{place}: {name}", counts.get(name)) for name in names))


def _count(text: TraceText, place: str, value: object) -> float:
    is_bool = isinstance(value, bool)
    if is_bool or not isinstance(value, int | float) or not 0 <= value <= MAX_DECIMAL:
        raise text.error(f"{place} is {shown(value)}; must be a number that is not negative")
    return value
