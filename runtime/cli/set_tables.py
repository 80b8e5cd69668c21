"""Compiled sets as text: their graphs, what compiling took, and their keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..compiled_set.graph_states import GraphState, State
from .tables import format_table, size_text

if TYPE_CHECKING:
    from ..compiled_set.compiling import CompiledSet
    from ..compiled_set.manifest import Manifest

HEADER = ("graph", "state", "seconds", "size", "peak memory")


def graphs_text(graphs: Sequence[GraphState]) -> str:
    """Return a table of graphs that were compiled or were there."""
    rows = [_row(one.name, one.state, one.seconds, one.num_bytes, one.peak_bytes) for one in graphs]
    return format_table(HEADER, rows)


def set_text(compiled: CompiledSet, seconds: float) -> str:
    """Return one line about a set that was compiled in so many seconds."""
    counts = [
        f"{num} {state}"
        for state in (State.DONE, State.THERE, State.FAILED)
        if (num := sum(graph.state is state for graph in compiled.graphs))
    ]
    workers = f"{num_text(compiled.workers.num, 'worker')} ({compiled.workers.reason})"
    size = size_text(num_bytes(compiled.folder.manifest))
    return f"{compiled.folder.path}: {', '.join(counts)}; {size}; {seconds:.1f} s, {workers}"


def manifest_text(manifest: Manifest) -> str:
    """Return all that a manifest says, the key one field a line."""
    rows = [
        _row(one.name, one.status, one.seconds, one.file.size, one.peak_bytes)
        for one in manifest.graphs.values()
    ]
    blocks = " + ".join(map(str, manifest.num_blocks)) or "any"
    lines = [format_table(HEADER, rows), "", f"num_blocks {blocks}"]
    return "\n".join(
        [*lines, *(f"{path}: {json.dumps(value)}" for path, value in _fields(manifest.key))]
    )


def num_bytes(manifest: Manifest) -> int:
    """Return the bytes of all files that a manifest lists."""
    return sum(entry.size for entry in manifest.all_files.values())


def count_text(manifest: Manifest) -> str:
    """Return how many graphs a set has."""
    num_failed = sum(graph.status == "failed" for graph in manifest.graphs.values())
    text = num_text(len(manifest.graphs) - num_failed, "graph")
    return f"{text}, {num_failed} failed" if num_failed else text


def num_text(num: int, noun: str) -> str:
    """Return a number of things.

    >>> num_text(1, "graph"), num_text(2, "graph")
    ('1 graph', '2 graphs')
    """
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def _row(name: str, state: str, seconds: float, size: int, peak_bytes: int) -> tuple[str, ...]:
    peak = size_text(peak_bytes) if peak_bytes else "-"
    return name, state, f"{seconds:.2f}", size_text(size), peak


def _fields(value: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Yield the path and value of every leaf of a key; a list of plain values is a leaf."""
    if isinstance(value, Mapping):
        for key in value:
            yield from _fields(value[key], f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and any(isinstance(one, Mapping) for one in value):
        for index, one in enumerate(value):
            yield from _fields(one, f"{path}[{index}]")
    else:
        yield path, value
