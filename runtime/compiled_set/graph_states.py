"""How far the graphs of a set are while they are compiled, and how long the rest may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """Of one graph."""

    WAITING = "waiting"
    COMPILING = "compiling"
    DONE = "done"
    FAILED = "failed"
    THERE = "there"
    """It was in the set already, or somebody else has put it there since."""


@dataclass(slots=True)
class GraphState:
    """One graph while its set is compiled.

    Attributes:
        name: of the graph.
        key: its own part of the key.
        num_tensors: that it reads; what it takes goes with it.
        seconds: that it took; of one in work, none yet.
        num_bytes: of its file.
        peak_bytes: most memory of the process that traced it.
        error: in one line, if it failed.
        since: when its work began, on the clock ``time.monotonic``.
    """

    name: str
    key: Mapping[str, object]
    num_tensors: int
    state: State = State.WAITING
    seconds: float = 0.0
    num_bytes: int = 0
    peak_bytes: int = 0
    error: str = ""
    since: float = 0.0


Report = Callable[[Sequence[GraphState], int], None]
"""Called after every change with all graphs and the number of workers."""


def remaining_s(graphs: Sequence[GraphState], num_workers: int, now: float) -> float | None:
    """Return the seconds that the rest is expected to take; None before anything is known.

    Seconds are taken to go with the number of tensors that a graph reads, as in those done here.
    """
    done = [graph for graph in graphs if graph.state is State.DONE]
    tensors = sum(graph.num_tensors for graph in done)
    if not tensors:
        return None
    rate = sum(graph.seconds for graph in done) / tensors
    left = 0.0
    for graph in graphs:
        if graph.state is State.WAITING:
            left += rate * graph.num_tensors
        elif graph.state is State.COMPILING:
            left += max(0.0, rate * graph.num_tensors - (now - graph.since))
    return left / max(1, num_workers)
