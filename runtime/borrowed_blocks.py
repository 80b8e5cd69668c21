"""Free blocks that are used between steps, and given back before anybody could miss them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .block_pool import BlockPool

Borrowed = tuple[tuple[int, ...], ...]
"""Ids of blocks, per pool."""


@contextmanager
def borrowed(pools: Sequence[BlockPool], counts: Sequence[int]) -> Iterator[Borrowed | None]:
    """Yield so many free blocks of each pool, which are as free as before when the block ends.

    None, and nothing changes, where a pool has too few. The next to be handed out stay the next.
    """
    needs = list(zip(pools, counts, strict=True))
    if any(count > pool.num_free for pool, count in needs):
        yield None
        return
    lent = [pool.allocate(count) or () for pool, count in needs]
    try:
        yield tuple(lent)
    finally:
        for pool, block_ids in zip(pools, lent, strict=True):
            pool.free(block_ids[::-1])
