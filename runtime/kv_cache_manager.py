"""Block tables of the running requests, over one pool per KV group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from ..kernels.contract import KVGroup, num_blocks_for
from .block_pool import BlockPool
from .block_table import BlockCopy, BlockTable, BlockTables
from .borrowed_blocks import Borrowed, borrowed
from .errors import RequestError


@dataclass(slots=True)
class _Table:
    """Blocks of one request in one group; ``first_block`` before them were given back."""

    first_block: int
    block_ids: list[int]

    @property
    def end_block(self) -> int:
        """Logical blocks up to the last one held."""
        return self.first_block + len(self.block_ids)


@dataclass(slots=True)
class _Entry:
    """One request: its tables per group, its cached tokens, those it was promised room for.

    ``owed`` are the blocks per group that it may still take on its promise; one more than that
    where another owner of the block that it writes next has left.
    """

    tables: list[_Table]
    num_computed_tokens: int
    promised_tokens: int
    owed: list[int]


@dataclass(frozen=True, slots=True)
class Donor:
    """A request whose first tokens another one has in common, and how many of them to share."""

    request_id: str
    num_tokens: int


class KVCacheManager:
    """Owns which request holds which blocks.

    A request is admitted with a promise: room for the tokens that it has. Promised blocks that
    it does not hold yet stay in the free list but are owed: nobody else gets them. Beyond its
    promise a request grows only while free blocks last.

    A block may have several owners. Before one of them writes into it, it gets a copy of its own.
    """

    def __init__(self, groups: Sequence[KVGroup], *, max_query_len: int) -> None:
        """Create empty pools.

        Args:
            groups: the KV groups.
            max_query_len: most tokens of one request in one step.
        """
        self._groups = tuple(groups)
        self._max_query_len = max_query_len
        self._pools = [BlockPool(group.num_blocks) for group in groups]
        self._entries: dict[str, _Entry] = {}
        self._owed = [0] * len(self._pools)

    def check_fits(self, num_tokens: int) -> None:
        """Refuse a request that even an empty cache cannot hold.

        Raises:
            RequestError: a group has too few blocks.
        """
        needs = zip(self._groups, self._pools, self._peak(num_tokens), strict=True)
        for group, pool, need in needs:
            if need > pool.num_usable:
                raise RequestError(
                    f"prompt and max_tokens need {num_tokens} tokens, which take {need} blocks of "
                    f"block_size {group.block_size}; num_blocks {pool.num_blocks} gives "
                    f"{pool.num_usable} (one is the null block)"
                )

    def admit(
        self,
        request_id: str,
        num_tokens: int,
        *,
        donor: Donor | None = None,
        num_spare_blocks: int = 0,
    ) -> bool:
        """Promise room for ``num_tokens`` tokens; False, and no change, if there is none.

        Args:
            request_id: a request without blocks.
            num_tokens: what it has now, prompt and output.
            donor: whose blocks it shares, see ``can_lend``.
            num_spare_blocks: blocks per group that must stay free beside the promise.
        """
        assert request_id not in self._entries, f"{request_id} has blocks already"
        entry = self._new_entry(num_tokens, donor)
        for pool, table in zip(self._pools, entry.tables, strict=True):
            pool.share(table.block_ids)
        self._entries[request_id] = entry
        self._settle(entry)
        rooms = zip(self._pools, self._owed, entry.owed, strict=True)
        if all(owed + num_spare_blocks * bool(own) <= pool.num_free for pool, owed, own in rooms):
            return True
        self.free(request_id)
        return False

    def can_lend(self, donor: Donor, num_tokens: int) -> bool:
        """Tell whether a running request has blocks to share with one of ``num_tokens`` tokens.

        It must still have those of its first tokens. And while the other computes its own, none of
        them may fall out of a window: that would free nothing for what it was promised.
        """
        entry = self._entries[donor.request_id]
        if entry.promised_tokens or entry.num_computed_tokens < donor.num_tokens:
            return False
        for group, table in zip(self._groups, entry.tables, strict=True):
            first = group.first_live_block(donor.num_tokens)
            if table.first_block > first or group.first_live_block(num_tokens - 1) > first:
                return False
        return True

    def grow(self, request_id: str, num_tokens: int) -> tuple[BlockCopy, ...] | None:
        """Give the request the blocks that ``num_tokens`` tokens need, for it alone to write.

        Returns the blocks to copy before anything is written; None, and no change, if free
        blocks do not suffice, which never happens within the promise.
        """
        entry = self._entries[request_id]
        missing = self._missing(entry, num_tokens)
        shared = self._shared_to_write(entry)
        if not (any(missing) or shared):
            return ()
        if not self._has_room(entry, missing, shared):
            return None
        for pool, table, count in zip(self._pools, entry.tables, missing, strict=True):
            table.block_ids.extend(_taken(pool, count))
        copies = tuple(self._unshare(entry, group, index) for group, index in shared)
        self._settle(entry)
        return copies

    def commit(self, request_id: str, num_computed_tokens: int) -> None:
        """Note that this many tokens are in the cache; what was promised for them is settled."""
        entry = self._entries[request_id]
        entry.num_computed_tokens = num_computed_tokens
        if 0 < entry.promised_tokens <= num_computed_tokens:
            entry.promised_tokens = 0
            self._settle(entry)

    def trim(self, request_id: str) -> None:
        """Give back the blocks that no later token sees."""
        entry = self._entries[request_id]
        for group, pool, table in zip(self._groups, self._pools, entry.tables, strict=True):
            num_dead = group.first_live_block(entry.num_computed_tokens) - table.first_block
            if num_dead > 0:
                pool.free(table.block_ids[:num_dead])
                del table.block_ids[:num_dead]
                table.first_block += num_dead
        if entry.promised_tokens:
            self._settle(entry)

    def block_tables(self, request_id: str) -> BlockTables:
        """Return the block ids of a request, per group."""
        tables = self._entries[request_id].tables
        return tuple(BlockTable(table.first_block, tuple(table.block_ids)) for table in tables)

    def free(self, request_id: str) -> None:
        """Give back all blocks and the promise; a request without blocks is fine."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            entry.promised_tokens = 0
            self._settle(entry)
            for table, pool in zip(entry.tables, self._pools, strict=True):
                pool.free(table.block_ids)

    def borrowed(self, counts: Sequence[int]) -> AbstractContextManager[Borrowed | None]:
        """Lend free blocks of each group, owed ones too, between two steps; see ``borrowed``."""
        return borrowed(self._pools, counts)

    @property
    def num_free_blocks(self) -> tuple[int, ...]:
        """Free blocks per group, those owed to running requests included."""
        return tuple(pool.num_free for pool in self._pools)

    @property
    def num_usable_blocks(self) -> tuple[int, ...]:
        """Blocks per group, without the null block."""
        return tuple(pool.num_usable for pool in self._pools)

    def check_invariants(self, num_computed_tokens: Mapping[str, int]) -> None:
        """Assert that pools and tables agree, given the cached tokens of each running request.

        Between steps a table holds exactly the blocks of the tokens that are cached and still
        seen, and what is owed is free.
        """
        assert set(num_computed_tokens) == set(self._entries), "tables of requests that do not run"
        for request_id, entry in self._entries.items():
            computed = num_computed_tokens[request_id]
            assert entry.num_computed_tokens == computed, f"{request_id}: cached tokens"
            for owed, promised in zip(entry.owed, self._promised(entry), strict=True):
                assert owed >= promised, f"{request_id}: blocks owed"
            for group, table in zip(self._groups, entry.tables, strict=True):
                end = num_blocks_for(computed, group.block_size)
                first = group.first_live_block(computed)
                assert table.first_block == first, f"{request_id}: first block of the table"
                assert table.end_block == end, f"{request_id}: table length"
        for index, pool in enumerate(self._pools):
            pool.check_invariants(
                block_id
                for entry in self._entries.values()
                for block_id in entry.tables[index].block_ids
            )
            owed = sum(entry.owed[index] for entry in self._entries.values())
            assert owed == self._owed[index], "blocks owed"
            assert pool.num_free >= owed, "owed blocks are not free"

    def _peak(self, num_tokens: int) -> list[int]:
        return [group.max_live_blocks(num_tokens, self._max_query_len) for group in self._groups]

    def _promised(self, entry: _Entry) -> list[int]:
        """Return the blocks per group that the request may still take on its promise."""
        promised = [0] * len(self._pools)
        if entry.promised_tokens:
            for group, peak in enumerate(self._peak(entry.promised_tokens)):
                promised[group] = max(0, peak - len(entry.tables[group].block_ids))
            for group, _ in self._shared_to_write(entry):
                promised[group] += 1
        return promised

    def _settle(self, entry: _Entry) -> None:
        """Bring what is owed up to date with an entry that changed."""
        promised = self._promised(entry)
        for group, (now, before) in enumerate(zip(promised, entry.owed, strict=True)):
            self._owed[group] += now - before
        entry.owed = promised

    def _new_entry(self, num_tokens: int, donor: Donor | None) -> _Entry:
        """Return an entry whose tables name the donor's blocks, which have no new owner yet."""
        nothing = [0] * len(self._groups)
        if donor is None:
            return _Entry([_Table(0, []) for _ in self._groups], 0, num_tokens, nothing)
        tables = []
        lent = self._entries[donor.request_id].tables
        for group, table in zip(self._groups, lent, strict=True):
            end = num_blocks_for(donor.num_tokens, group.block_size)
            first = group.first_live_block(donor.num_tokens)
            at = first - table.first_block
            tables.append(_Table(first, table.block_ids[at : at + end - first]))
        return _Entry(tables, donor.num_tokens, num_tokens, nothing)

    def _missing(self, entry: _Entry, num_tokens: int) -> list[int]:
        tables = zip(self._groups, entry.tables, strict=True)
        return [
            max(0, num_blocks_for(num_tokens, group.block_size) - table.end_block)
            for group, table in tables
        ]

    def _shared_to_write(self, entry: _Entry) -> list[tuple[int, int]]:
        """Return (group, index in its table) of the blocks written next that others own too."""
        shared: list[tuple[int, int]] = []
        if not any(pool.has_shared_blocks for pool in self._pools):
            return shared
        for index, (group, table) in enumerate(zip(self._groups, entry.tables, strict=True)):
            at = entry.num_computed_tokens // group.block_size - table.first_block
            is_held = at < len(table.block_ids)
            if is_held and self._pools[index].num_owners(table.block_ids[at]) > 1:
                shared.append((index, at))
        return shared

    def _has_room(
        self, entry: _Entry, missing: Sequence[int], shared: Sequence[tuple[int, int]]
    ) -> bool:
        for index, pool in enumerate(self._pools):
            need = missing[index] + sum(group == index for group, _ in shared)
            if need > pool.num_free - (self._owed[index] - entry.owed[index]):
                return False
        return True

    def _unshare(self, entry: _Entry, group: int, index: int) -> BlockCopy:
        """Replace a shared block of a table by a new one."""
        block_ids, pool = entry.tables[group].block_ids, self._pools[group]
        source = block_ids[index]
        (block_ids[index],) = _taken(pool, 1)
        pool.free([source])
        return BlockCopy(group, source, block_ids[index])


def _taken(pool: BlockPool, count: int) -> tuple[int, ...]:
    blocks = pool.allocate(count)
    assert blocks is not None, "a block that there is room for is missing"
    return blocks
