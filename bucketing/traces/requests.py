"""Columns of requests, as files record them, made into a Trace."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .fields import Column
from .kinds import NS
from .oddities import with_oddities
from .text import TraceText
from .trace import Floats, Ints, Trace, pick


@dataclass(frozen=True, slots=True)
class Requests:
    """Requests in the order of their lines, N of them.

    Attributes:
        lines: line number of each ``[N]``.
        prompt_lens: tokens ``[N]``.
        output_lens: tokens ``[N]``.
        times: in seconds, or as integers in nanoseconds; from any start, in any order ``[N]``.
        prefix_lens: tokens, checked here ``[N]``.
        weights: requests that a row stands for; rows with 0 are left out ``[N]``.
    """

    lines: Ints
    prompt_lens: Ints
    output_lens: Ints | None = None
    times: Column | None = None
    prefix_lens: Ints | None = None
    weights: Floats | None = None


def time_order(times: Column) -> Ints:
    """Return the rows by time; rows of one time keep their order."""
    return np.argsort(times, kind="stable")


def trace_of(text: TraceText, requests: Requests, warnings: tuple[str, ...] = ()) -> Trace:
    """Make a trace, in order of arrival.

    Raises:
        TraceError: a prefix is not shorter than its prompt, or no row stands for a request.
    """
    _check_prefixes(text, requests)
    order, late = _order(text, requests)
    arrivals = None if requests.times is None else _since_first(requests.times[order])
    trace = Trace(
        prompt_lens=requests.prompt_lens[order],
        output_lens=pick(requests.output_lens, order),
        arrivals_s=arrivals,
        prefix_lens=pick(requests.prefix_lens, order),
        weights=pick(requests.weights, order),
        sha256=text.sha256,
        warnings=(*late, *warnings),
    )
    return with_oddities(trace)


def _check_prefixes(text: TraceText, requests: Requests) -> None:
    if requests.prefix_lens is None:
        return
    wrong = np.flatnonzero(requests.prefix_lens >= requests.prompt_lens)
    if len(wrong):
        prefix, prompt = requests.prefix_lens[wrong[0]], requests.prompt_lens[wrong[0]]
        problem = f"the prefix has {prefix} tokens; must be below the prompt's {prompt}"
        raise text.error(problem, int(requests.lines[wrong[0]]))


def _order(text: TraceText, requests: Requests) -> tuple[Ints, tuple[str, ...]]:
    """Return the rows that count, in order of arrival, and a warning if that is not theirs."""
    rows = np.arange(len(requests.lines))
    if requests.weights is not None:
        rows = np.flatnonzero(requests.weights)
    if len(rows) == 0:
        raise text.error("every count is 0; a trace has at least one request")
    if requests.times is None:
        return rows, ()
    times = requests.times[rows]
    early = np.flatnonzero(times[1:] < times[:-1]) + 1
    if len(early) == 0:
        return rows, ()
    first = requests.lines[rows[early[0]]]
    warning = (
        f"times are not in order: {len(early):,} of {len(rows):,} rows are earlier than the row "
        f"before, the first on line {first}; the rows were sorted by time"
    )
    return rows[time_order(times)], (warning,)


def _since_first(times: Column) -> Floats:
    since: Floats = (times - times[0]).astype(np.float64)
    return since / NS if np.issubdtype(times.dtype, np.integer) else since
