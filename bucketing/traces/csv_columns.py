"""Columns of a CSV text by the names in its header: at once if it is plain, else line by line."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .fields import Column, read_all, split_fields
from .kinds import Kind
from .text import TraceText, shown
from .trace import Ints

_DTYPES = {"whole": np.int64, "instant": np.int64, "decimal": np.float64, "word": np.bytes_}


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of one length.

    Attributes:
        columns: values by name.
        lines: line number of each row.
    """

    columns: Mapping[str, Column]
    lines: Ints


def header_names(line: bytes) -> list[str]:
    """Return the names in a header, which may be quoted."""
    return _split(line.decode("utf-8"))


def read_columns(text: TraceText, kinds: Mapping[str, Kind]) -> Table:
    """Read the columns that ``kinds`` names; the header has all of them, and maybe others.

    Raises:
        TraceError: a name stands there twice, there is no row, or a row is wrong.
    """
    names = header_names(text.first_line)
    header_line = text.line_at(text.start)
    for name in kinds:
        if names.count(name) > 1:
            raise text.error(f"column {name} stands there twice", header_line)
    end = text.data.find(b"\n", text.start)
    if end < 0:
        raise text.error("has a header and no row; a trace has at least one request", header_line)
    at = [names.index(name) for name in kinds]
    columns = _read_plain(text.data[end + 1 :], len(names), at, list(kinds.values()))
    if columns is None:
        return _read_lines(text, len(names), dict(zip(kinds, at, strict=True)), kinds)
    lines = np.arange(len(columns[0]), dtype=np.int64) + header_line + 1
    return Table(dict(zip(kinds, columns, strict=True)), lines)


def _read_plain(
    lines: bytes, num_columns: int, at: Sequence[int], kinds: Sequence[Kind]
) -> list[Column] | None:
    """Read all lines at once; None if one of them is not plain."""
    fields = split_fields(lines, num_columns)
    return None if fields is None else read_all([fields[index] for index in at], kinds)


def _read_lines(
    text: TraceText, num_columns: int, at: Mapping[str, int], kinds: Mapping[str, Kind]
) -> Table:
    """Read line by line, which finds what is wrong.

    Raises:
        TraceError: the first wrong line, and what should stand there.
    """
    numbers: list[int] = []
    values: dict[str, list[int | float | str]] = {name: [] for name in kinds}
    for line, row in _rows(text, num_columns):
        numbers.append(line)
        for name, kind in kinds.items():
            try:
                values[name].append(kind.read(row[at[name]]))
            except ValueError:
                problem = f"{name} is {shown(row[at[name]])}; {kind.fits}"
                raise text.error(problem, line) from None
    columns = {name: _column(values[name], kind) for name, kind in kinds.items()}
    return Table(columns, np.asarray(numbers, np.int64))


def _rows(text: TraceText, num_columns: int) -> Iterator[tuple[int, list[str]]]:
    lines = text.lines()
    next(lines)  # the header
    for number, line in lines:
        row = _split(line.decode("utf-8"))
        if len(row) != num_columns:
            raise text.error(f"has {len(row)} columns; the header has {num_columns}", number)
        yield number, row


def _split(line: str) -> list[str]:
    """Return the values of a line, without blanks and quotes around them."""
    if '"' not in line:
        return [part.strip() for part in line.split(",")]
    try:
        return [part.strip() for part in next(csv.reader([line], skipinitialspace=True))]
    except csv.Error:
        return [line]


def _column(values: Sequence[int | float | str], kind: Kind) -> Column:
    if kind.layout == "word":
        return np.array([str(value).encode() for value in values], np.bytes_)
    return np.array(values, _DTYPES[kind.layout])
