"""Traces in CSV: requests by Azure, Vidur and ourselves, and histograms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .csv_columns import Table, header_names, read_columns
from .fields import Column
from .kinds import CACHED_TOKENS, COUNT, INSTANT, SECONDS, TOKENS, WORD, Kind
from .requests import Requests, trace_of
from .text import TraceText, shown
from .trace import Trace

Columns = Mapping[str, Column]
Build = Callable[[TraceText, Table], Trace]

INPUT, OUTPUT = b"input_tokens", b"output_tokens"
FIELD_FITS = "must be input_tokens or output_tokens"
WINDOWS = (
    "a histogram per window of time: prompts arrive at the start of their window, and the lengths "
    "of outputs, which belong to no prompt, are left out"
)


@dataclass(frozen=True, slots=True)
class CsvFormat:
    """A header, and how to make a trace of the columns below it.

    Attributes:
        name: for people.
        needed: columns that it always has.
        build: makes the trace.
        optional: columns that it may have; others are not looked at.
    """

    name: str
    needed: Mapping[str, Kind]
    build: Build
    optional: Mapping[str, Kind]

    @property
    def text(self) -> str:
        """Name and columns, for errors."""
        optional = "".join(f"[,{name}]" for name in self.optional)
        return f"{self.name} ({','.join(self.needed)}{optional})"


def read_csv(text: TraceText) -> Trace:
    """Read a CSV text whose format its header tells.

    Raises:
        TraceError: it has no known header, or a line is wrong.
    """
    names = header_names(text.first_line)
    found = csv_format(names)
    if found is None:
        raise text.error(_unknown(text.first_line, names), text.line_at(text.start))
    optional = {name: kind for name, kind in found.optional.items() if name in names}
    return found.build(text, read_columns(text, {**found.needed, **optional}))


def csv_format(names: Sequence[str]) -> CsvFormat | None:
    """Return the format that has these columns, None if there is none."""
    return next((each for each in CSV_FORMATS if set(each.needed) <= set(names)), None)


def _unknown(line: bytes, names: Sequence[str]) -> str:
    near = max(CSV_FORMATS, key=lambda each: len(set(each.needed) & set(names)))
    missing = [name for name in near.needed if name not in names]
    if len(missing) < len(near.needed):
        return f"column {missing[0]} is missing; {near.text}"
    known = "; ".join(each.text for each in CSV_FORMATS)
    return (
        f"{shown(line)} begins no known trace; known are CSV: {known}; and JSON: Mooncake JSON "
        f"lines (timestamp, input_length, output_length, hash_ids), noria counters"
    )


def _requests(
    prompt: str, output: str, time: str, prefix: str | None = None, weight: str | None = None
) -> Build:
    """Return what makes a trace of columns with these names, as far as they are there."""

    def build(text: TraceText, table: Table) -> Trace:
        def column(name: str | None) -> Column | None:
            return None if name is None else table.columns.get(name)

        prompts = table.columns[prompt]
        others = (column(name) for name in (output, time, prefix, weight))
        return trace_of(text, Requests(table.lines, prompts, *others))

    return build


def _histogram(text: TraceText, table: Table) -> Trace:
    sizes, counts = table.columns["size"], table.columns["count"]
    return trace_of(text, Requests(table.lines, sizes, weights=counts))


def _windows(text: TraceText, table: Table) -> Trace:
    fields = table.columns["field"]
    is_prompt = fields == INPUT
    tokens = table.columns["tokens"]
    _refuse(text, table, ~is_prompt & (fields != OUTPUT), "field", FIELD_FITS)
    _refuse(text, table, is_prompt & (tokens == 0), "tokens", "must be at least 1 for a prompt")
    if not is_prompt.any():
        raise text.error("no row is of field input_tokens; a trace has at least one prompt")
    prompts, times, counts = (
        table.columns[name][is_prompt] for name in ("tokens", "window_start_s", "expected_requests")
    )
    rows = Requests(table.lines[is_prompt], prompts, times=times, weights=counts)
    return trace_of(text, rows, (WINDOWS,))


def _refuse(text: TraceText, table: Table, is_odd: NDArray[np.bool_], name: str, fits: str) -> None:
    """Raise an error about the first odd row, if there is one."""
    odd = np.flatnonzero(is_odd)
    if len(odd):
        value = table.columns[name][odd[0]].item()
        raise text.error(f"{name} is {shown(value)}; {fits}", int(table.lines[odd[0]]))


OWN_COLUMNS = ("prompt_len", "output_len", "arrival_s", "prefix_len", "weight")

CSV_FORMATS = (
    CsvFormat(
        "requests",
        {"prompt_len": TOKENS},
        _requests(*OWN_COLUMNS),
        dict(zip(OWN_COLUMNS[1:], (TOKENS, SECONDS, CACHED_TOKENS, COUNT), strict=True)),
    ),
    CsvFormat(
        "Azure LLM",
        {"TIMESTAMP": INSTANT, "ContextTokens": TOKENS, "GeneratedTokens": TOKENS},
        _requests("ContextTokens", "GeneratedTokens", "TIMESTAMP"),
        {},
    ),
    CsvFormat(
        "Vidur lengths",
        {"num_prefill_tokens": TOKENS, "num_decode_tokens": TOKENS},
        _requests("num_prefill_tokens", "num_decode_tokens", "arrived_at"),
        {"arrived_at": SECONDS},
    ),
    CsvFormat("histogram", {"size": TOKENS, "count": COUNT}, _histogram, {}),
    CsvFormat(
        "ServeGen windows",
        {
            "window_start_s": SECONDS,
            "field": WORD,
            "tokens": CACHED_TOKENS,
            "expected_requests": COUNT,
        },
        _windows,
        {},
    ),
)


def trace_csv(trace: Trace) -> str:
    """Write a trace as a CSV text that ``read_csv`` reads back, number for number."""
    columns = (
        *(trace.prompt_lens, trace.output_lens, trace.arrivals_s),
        *(trace.prefix_lens, trace.weights),
    )
    given = [(n, c) for n, c in zip(OWN_COLUMNS, columns, strict=True) if c is not None]
    texts = ([repr(value) for value in column.tolist()] for _, column in given)
    rows = [",".join(row) for row in zip(*texts, strict=True)]
    return "\n".join([",".join(name for name, _ in given), *rows, ""])
