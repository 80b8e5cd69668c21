from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.runtime.block_pool import BlockPool


def state(pool: BlockPool) -> object:
    return copy.deepcopy((list(pool._free), pool._ref_counts, pool._generations))


def test_the_null_block_is_never_handed_out():
    pool = BlockPool(5)

    blocks = pool.allocate(4)

    assert blocks == (1, 2, 3, 4)
    assert pool.allocate(1) is None


def test_failed_allocation_changes_nothing():
    pool = BlockPool(6)
    pool.allocate(3)
    before = state(pool)

    assert pool.allocate(3) is None
    assert state(pool) == before


def test_blocks_are_reused_last_freed_first_and_from_the_tail_of_a_table():
    pool = BlockPool(9)
    first, second = pool.allocate(3), pool.allocate(2)

    pool.free(first)
    pool.free(second)

    assert pool.allocate(8) == (5, 4, 3, 2, 1, 6, 7, 8)


def test_shared_block_is_free_only_when_its_last_owner_lets_go():
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.share(blocks)

    pool.free(blocks)
    assert pool.num_free == 1
    pool.free(blocks)
    assert pool.num_free == 2


def test_generation_tells_a_reused_block_from_a_stale_reference():
    pool = BlockPool(2)
    (block,) = pool.allocate(1)
    seen = pool.generation(block)
    pool.free([block])
    pool.allocate(1)

    assert pool.generation(block) == seen + 1


@pytest.mark.parametrize("size", [-1, 0, 1])
def test_a_pool_of_the_null_block_alone_is_refused(size):
    with pytest.raises(ValueError, match="at least 2 blocks"):
        BlockPool(size)


def test_double_free_and_foreign_blocks_are_caught():
    pool = BlockPool(4)
    blocks = pool.allocate(1)
    pool.free(blocks)

    with pytest.raises(AssertionError, match="not in use"):
        pool.free(blocks)
    with pytest.raises(AssertionError, match="not in use"):
        pool.share([3])
    with pytest.raises(AssertionError, match="not in use"):
        pool.free([0])


@pytest.mark.parametrize(
    "break_it",
    [
        lambda pool: pool._free.__setitem__(0, None),
        lambda pool: pool._free.__setitem__(1, None),
        lambda pool: pool._free.popitem(),
        lambda pool: pool._ref_counts.__setitem__(1, 2),
        lambda pool: pool._ref_counts.__setitem__(0, 1),
    ],
    ids=["null-free", "used-free", "leak", "count", "null-owned"],
)
def test_the_invariant_check_can_fail(break_it):
    pool = BlockPool(4)
    pool.allocate(2)
    pool.check_invariants([1, 2])

    break_it(pool)

    with pytest.raises(AssertionError):
        pool.check_invariants([1, 2])


@given(st.integers(2, 12), st.lists(st.tuples(st.sampled_from("afs"), st.integers(0, 9))))
def test_random_use_keeps_the_pool_consistent(num_blocks, operations):
    pool, tables = BlockPool(num_blocks), []
    for operation, number in operations:
        if operation == "a":
            blocks = pool.allocate(number)
            assert (blocks is None) == (number > num_blocks - 1 - len({*sum(tables, ())}))
            tables += [blocks] if blocks else []
        elif tables and operation == "f":
            pool.free(tables.pop(number % len(tables)))
        elif tables:
            shared = tables[number % len(tables)]
            pool.share(shared)
            tables.append(shared)
        pool.check_invariants(block for table in tables for block in table)
    for table in tables:
        pool.free(table)
    assert pool.num_free == pool.num_usable
