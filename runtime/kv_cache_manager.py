"""Block tables of the running requests, over one pool per KV group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..kernels.contract import KVGroup, num_blocks_for
from .block_pool import BlockPool
from .errors import RequestError

BlockTables = tuple[tuple[int, ...], ...]
"""Block ids of one request, per group, in logical order."""


@dataclass(slots=True)
class _Entry:
    """One request: its tables per group, and the tokens it was promised room for."""

    tables: list[list[int]]
    reserved_tokens: int


class KVCacheManager:
    """Owns which request holds which blocks.

    A request first reserves room for all tokens that it may ever hold, then gets blocks as its
    real tokens come. Reserved blocks that are not handed out yet stay in the free list but
    are owed: no other request can reserve them, so growing never fails.
    """

    def __init__(self, groups: Sequence[KVGroup]) -> None:
        """Create empty pools for these groups."""
        self._block_sizes = [group.block_size for group in groups]
        self._pools = [BlockPool(group.num_blocks) for group in groups]
        self._entries: dict[str, _Entry] = {}

    def check_fits(self, num_tokens: int) -> None:
        """Refuse a request that even an empty cache cannot hold.

        Raises:
            RequestError: a group has too few blocks.
        """
        groups = zip(self._block_sizes, self._pools, strict=True)
        for block_size, pool in groups:
            need = num_blocks_for(num_tokens, block_size)
            if need > pool.num_usable:
                raise RequestError(
                    f"prompt and max_tokens need {num_tokens} tokens, which take {need} blocks of "
                    f"block_size {block_size}; num_blocks {pool.num_blocks} gives "
                    f"{pool.num_usable} (one is the null block)"
                )

    def reserve(self, request_id: str, num_tokens: int) -> bool:
        """Promise room for ``num_tokens`` tokens; False, and no change, if there is none."""
        assert request_id not in self._entries, f"{request_id} has blocks already"
        free = zip(self._blocks_needed(num_tokens), self._pools, self._owed(), strict=True)
        if any(need > pool.num_free - owed for need, pool, owed in free):
            return False
        self._entries[request_id] = _Entry([[] for _ in self._pools], num_tokens)
        return True

    def grow(self, request_id: str, num_tokens: int) -> None:
        """Give the request the blocks that ``num_tokens`` tokens need."""
        entry = self._entries[request_id]
        assert num_tokens <= entry.reserved_tokens, f"{request_id} exceeds its reservation"
        groups = zip(entry.tables, self._pools, self._blocks_needed(num_tokens), strict=True)
        for table, pool, need in groups:
            blocks = pool.allocate(max(0, need - len(table)))
            assert blocks is not None, "a reserved block is missing"
            table.extend(blocks)

    def trim(self, request_id: str, num_tokens: int) -> None:
        """Take back blocks at the end that ``num_tokens`` tokens do not need."""
        groups = zip(
            self._entries[request_id].tables,
            self._pools,
            self._blocks_needed(num_tokens),
            strict=True,
        )
        for table, pool, need in groups:
            pool.free(table[need:])
            del table[need:]

    def block_tables(self, request_id: str) -> BlockTables:
        """Return the block ids of a request, per group."""
        return tuple(tuple(table) for table in self._entries[request_id].tables)

    def free(self, request_id: str) -> None:
        """Give back all blocks and the reservation; a request without blocks is fine."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            for table, pool in zip(entry.tables, self._pools, strict=True):
                pool.free(table)

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """Free blocks per group, those owed to running requests included."""
        return tuple(pool.num_free for pool in self._pools)

    def check_invariants(self, num_tokens: Mapping[str, int]) -> None:
        """Assert that pools and tables agree, given the tokens held by each running request.

        Tables hold exactly ``ceil(tokens / block_size)`` blocks, no live slot belongs to two
        requests, and what is owed is free.
        """
        assert set(num_tokens) == set(self._entries), "tables of requests that do not run"
        for request_id, entry in self._entries.items():
            expected = self._blocks_needed(num_tokens[request_id])
            assert [len(table) for table in entry.tables] == expected, f"{request_id}: table length"
        for group, pool in enumerate(self._pools):
            pool.check_invariants(
                block_id for entry in self._entries.values() for block_id in entry.tables[group]
            )
            assert pool.num_free >= self._owed()[group], "owed blocks are not free"

    def _blocks_needed(self, num_tokens: int) -> list[int]:
        return [num_blocks_for(num_tokens, block_size) for block_size in self._block_sizes]

    def _owed(self) -> list[int]:
        owed = [0] * len(self._pools)
        for entry in self._entries.values():
            needs = self._blocks_needed(entry.reserved_tokens)
            for group, (need, table) in enumerate(zip(needs, entry.tables, strict=True)):
                owed[group] += need - len(table)
        return owed
