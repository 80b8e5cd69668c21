"""The blocks of one request, per KV group, as they pass from the scheduler to the graphs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Blocks of one request in one group, in logical order.

    ``block_ids[i]`` holds the positions from ``(first_block + i) * block_size`` on. Blocks before
    ``first_block`` were given back: no later token sees them.
    """

    first_block: int
    block_ids: tuple[int, ...]


BlockTables = tuple[BlockTable, ...]
"""One table per KV group."""


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """One block of one group that is copied before a step, in every layer of the group."""

    group: int
    source: int
    destination: int
