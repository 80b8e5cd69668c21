"""The pool of KV blocks of one group: free list, reference counts, generations.

It knows block ids only: no requests, no tensors. Block 0 is the null block: it is taken out at
start and never handed out, so a table may use 0 for "unused".
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from ..kernels.contract import NULL_BLOCK_ID


class BlockPool:
    """Blocks ``1 .. num_blocks - 1``, each free or owned by one or more tables.

    The head of the free list is reused next. Blocks go back to the head, so that the memory
    touched last is reused first, and of a table the tail before the head, as in vLLM v1: the
    start of a prompt is what others are most likely to share.
    """

    def __init__(self, num_blocks: int) -> None:
        """Create a pool in which every block but the null block is free."""
        if num_blocks < 2:
            raise ValueError(
                f"a pool needs at least 2 blocks (one is the null block): {num_blocks}"
            )
        self.num_blocks = num_blocks
        self._ref_counts = [0] * num_blocks
        self._generations = [0] * num_blocks
        self._num_extra_owners = 0
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, num_blocks))

    @property
    def num_free(self) -> int:
        """Number of blocks that can be allocated now."""
        return len(self._free)

    @property
    def num_usable(self) -> int:
        """Number of blocks that one request could own in an empty pool."""
        return self.num_blocks - 1

    def allocate(self, count: int) -> tuple[int, ...] | None:
        """Take ``count`` blocks from the head of the free list; None, and no change, if short."""
        if count > len(self._free):
            return None
        return tuple(self._take() for _ in range(count))

    def share(self, block_ids: Iterable[int]) -> None:
        """Add one owner to blocks that are in use."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is not in use"
            self._ref_counts[block_id] += 1
            self._num_extra_owners += 1

    def free(self, block_ids: Sequence[int]) -> None:
        """Drop one owner of each block of a table; the last block is then reused first."""
        for block_id in block_ids:
            assert self._ref_counts[block_id] > 0, f"block {block_id} is not in use"
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._free[block_id] = None
                self._free.move_to_end(block_id, last=False)
            else:
                self._num_extra_owners -= 1

    @property
    def has_shared_blocks(self) -> bool:
        """Whether any block has more than one owner."""
        return self._num_extra_owners > 0

    def num_owners(self, block_id: int) -> int:
        """How many tables hold the block."""
        return self._ref_counts[block_id]

    def generation(self, block_id: int) -> int:
        """How often the block was handed out: a stale reference shows by an older number."""
        return self._generations[block_id]

    def check_invariants(self, owned: Iterable[int]) -> None:
        """Assert that the pool agrees with the block ids that all tables hold.

        Free and used blocks and the null block partition the ids, reference counts equal table
        occurrences, and the null block is neither free nor owned.
        """
        owners = Counter(owned)
        used = {block_id for block_id in range(1, self.num_blocks) if block_id not in self._free}
        assert NULL_BLOCK_ID not in self._free, "the null block is in the free list"
        assert self._ref_counts[NULL_BLOCK_ID] == 0, "the null block has owners"
        assert set(owners) == used, f"tables hold {sorted(owners)}, in use are {sorted(used)}"
        for block_id in range(1, self.num_blocks):
            count = self._ref_counts[block_id]
            assert count == owners[block_id], f"block {block_id}: {count} references"
        num_extra = sum(count - 1 for count in self._ref_counts if count)
        assert self._num_extra_owners == num_extra, "blocks of several owners"

    def _take(self) -> int:
        block_id, _ = self._free.popitem(last=False)
        self._ref_counts[block_id] = 1
        self._generations[block_id] += 1
        return block_id
