"""Covering: a prompt runs in several chunks, of which only the last is padded.

Which chunks is a shortest path over offsets in the prompt. A chunk costs the rows of its graph and
what these read of the tokens before them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import gcd, inf

import numpy as np
from numpy.typing import ArrayLike

from ..costs.cost import StepCosts
from ..costs.reads import Prefix, charged_prefix
from ..ladder import powers_of_two
from .demand import Floats, Ints

MIN_PREFIX = 512
"""Least cached tokens that ``bucketed`` graphs are made for, besides none."""

ROUNDING = 1e-12
"""Relative difference below which two ways cost the same."""


@dataclass(frozen=True, slots=True, eq=False)
class CoverTable:
    """How to run any number of rows with some sizes of graphs.

    Attributes:
        first_chunk: by rows that wait: the chunk to run next, the largest of the cheapest
            chunks for a prompt of this length; 0 for 0 rows ``[L + 1]``.
        seconds: by prompt length: of its cheapest chunks ``[L + 1]``.
    """

    first_chunk: Ints
    seconds: Floats

    def chunks(self, num_rows: int) -> tuple[int, ...]:
        """Return the chunks that ``num_rows`` run in if no others arrive; the last is padded."""
        found = []
        while num_rows > 0:
            found.append(int(self.first_chunk[num_rows]))
            num_rows -= found[-1]
        return tuple(found)

    def changes(self) -> tuple[tuple[int, int], ...]:
        """Return (rows, chunk) where the chunk changes: it holds from so many rows on."""
        at = 1 + np.flatnonzero(np.diff(self.first_chunk[1:], prepend=0))
        return tuple(zip(at.tolist(), self.first_chunk[at].tolist(), strict=True))


def cover_table(
    sizes: Sequence[int],
    costs: StepCosts,
    max_len: int,
    *,
    prefix: Prefix,
    context_len: int,
) -> CoverTable:
    """Return the cheapest chunks for every length up to ``max_len``.

    Args:
        sizes: rows of the prefill graphs, strictly increasing, not empty.
        costs: of a full step of a graph.
        max_len: of a prompt; may be larger than every size.
        prefix: what the kernel reads of the tokens before a chunk.
        context_len: of the graphs, at least ``max_len``.

    Which of several cheapest ways is taken is settled: the least padding, small chunks last.
    """
    check_sizes(sizes, max_len, context_len)
    unit = gcd(*sizes)
    num = -(-max_len // unit)
    offsets = np.arange(num) * unit
    read = prefix_read(offsets, prefix=prefix, context_len=context_len)
    steps = costs.prefill_s(np.array(sizes)[:, None], read[None, :]).tolist()
    lengths = [size // unit for size in sizes]
    seconds, largest = _cheapest_up_to(*_shortest(lengths, steps, num), num)
    cells = -(-np.arange(max_len + 1) // unit)
    return CoverTable(np.array(largest)[cells] * unit, np.array(seconds)[cells])


def followed_seconds(
    first_chunk: Ints, costs: StepCosts, *, prefix: Prefix, context_len: int
) -> Floats:
    """Return what a prompt of each length takes if each chunk is the one named for the rest.

    A table knows how many rows wait, not where they are in their prompt. Where the read of a
    prefix makes a padded row dearer, this can be more than ``CoverTable.seconds``.
    """
    left = np.arange(len(first_chunk))
    done, total = np.zeros_like(left), np.zeros(len(left))
    while left.any():
        runs = np.flatnonzero(left)
        chunk = first_chunk[left[runs]]
        read = prefix_read(done[runs], prefix=prefix, context_len=context_len)
        total[runs] += costs.prefill_s(chunk, read)
        done[runs] += chunk
        left[runs] = np.maximum(left[runs] - chunk, 0)
    return total


def prefix_read(offsets: Ints, *, prefix: Prefix, context_len: int) -> Ints:
    """Return the cached tokens that are read by a chunk that starts at each offset.

    Buckets of prefixes are the powers of two from ``MIN_PREFIX`` on, up to the context.

    >>> at = np.array([0, 100, 600])
    >>> prefix_read(at, prefix="bucketed", context_len=4096).tolist()
    [0, 512, 1024]
    >>> prefix_read(at, prefix="max", context_len=4096).tolist()
    [4096, 4096, 4096]
    """
    charged = charged_prefix(offsets, prefix, powers_of_two(MIN_PREFIX, context_len))
    return charged.astype(np.int64)


def graph_prefix(
    prefix_lens: ArrayLike, num_rows: ArrayLike, context_lens: ArrayLike, prefix: Prefix
) -> Floats:
    """Return the cached tokens that a step reads in a graph, besides its rows.

    Args:
        prefix_lens: cached tokens that its rows attend to.
        num_rows: of the graph.
        context_lens: of the graph; beside its rows, more is never read than it has room for.
        prefix: what the kernel reads.

    >>> graph_prefix([0, 600], 256, 1024, "bucketed").tolist()
    [0.0, 768.0]
    >>> graph_prefix([0, 600], 256, 1024, "max").tolist()
    [768.0, 768.0]
    """
    lens = np.asarray(prefix_lens, dtype=np.float64)
    charged = charged_prefix(lens, prefix, powers_of_two(MIN_PREFIX, int(np.max(context_lens))))
    rows = np.asarray(num_rows, dtype=np.float64)
    room = np.asarray(context_lens, dtype=np.float64) - rows
    read: Floats = np.maximum(np.minimum(charged, room), lens)
    return read


def check_sizes(sizes: Sequence[int], max_len: int, context_len: int) -> None:
    """Refuse what cannot cover a prompt.

    Raises:
        ValueError: says what is wrong.
    """
    if not len(sizes) or sizes[0] < 1 or any(b <= a for a, b in pairwise(sizes)):
        raise ValueError(f"sizes must be positive and strictly increasing, got {list(sizes)}")
    if not 1 <= max_len <= context_len:
        raise ValueError(f"max_len must be 1 to context_len {context_len}, got {max_len}")


def _shortest(
    lengths: Sequence[int], steps: Sequence[Sequence[float]], num: int
) -> tuple[list[float], list[int]]:
    """Return what full chunks from the start to each end cost, and the largest of them.

    A padded chunk costs what a full one does, so ends go beyond ``num``: a prompt ends there.
    """
    ends = num + lengths[-1]
    spent, largest = [0.0] + [inf] * (ends - 1), [0] * ends
    rows = list(zip(lengths, steps, strict=True))
    for end in range(1, ends):
        best = inf
        for length, row in rows:
            start = end - length
            if start < 0:
                break
            if start < num and (value := spent[start] + row[start]) < best * (1 - ROUNDING):
                best, largest[end] = value, max(largest[start], length)
        spent[end] = best
    return spent, largest


def _cheapest_up_to(
    spent: list[float], largest: list[int], num: int
) -> tuple[list[float], list[int]]:
    """Return, for prompts of 0 to ``num``, the best of all ends that are not before theirs."""
    best, at = inf, len(spent) - 1
    seconds, chunks = [0.0] * (num + 1), [0] * (num + 1)
    for end in range(len(spent) - 1, 0, -1):
        if spent[end] < inf and spent[end] <= best * (1 + ROUNDING):
            best, at = spent[end], end
        if end <= num:
            seconds[end], chunks[end] = best, largest[at]
    return seconds, chunks
