"""dma_copy: direct copies, gathers and scatters, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

from noria.kernels.nki.simulator import Trace

SKIP = nisa.oob_mode.skip
OUTSIDE = (-1, -128, 8, 2**31 - 1, -(2**31))


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.int32).reshape(-1, 1)


def picked(table: Any, index: Any, **options: Any) -> Any:
    """Return rows of a table in a tile that held 7."""
    width = table.shape[1]
    found = filled(index.shape[0], width, value=7)
    source = table.ap([[width, index.shape[0]], [1, width]], vector_offset=loaded(index))
    nisa.dma_copy(dst=found, src=source, **options)
    return copied_out(found)


def scattered(table: Any, new: Any, index: Any, **options: Any) -> Any:
    width = table.shape[1]
    target = table.ap([[width, index.shape[0]], [1, width]], vector_offset=loaded(index))
    nisa.dma_copy(dst=target, src=loaded(new), **options)
    return table


def test_a_gather_picks_rows() -> None:
    table = draw(8, 5)

    np.testing.assert_array_equal(run(picked, table, rows(3, 0, 3)), table[[3, 0, 3]])


def test_vector_select_is_the_same_gather() -> None:
    def kernel(table, index):
        found = tile(3, 5)
        nisa.dma_copy(dst=found, src=table.vector_select(0, loaded(index)))
        return copied_out(found)

    table = draw(8, 5)
    np.testing.assert_array_equal(run(kernel, table, rows(7, 0, 2)), table[[7, 0, 2]])


def test_a_gather_takes_part_of_each_row() -> None:
    def kernel(table, index):
        found = tile(2, 2)
        source = table.ap([[5, 2], [2, 2]], offset=1, vector_offset=loaded(index))
        nisa.dma_copy(dst=found, src=source)
        return copied_out(found)

    table = draw(8, 5)
    np.testing.assert_array_equal(run(kernel, table, rows(7, 2)), table[[7, 2]][:, 1:5:2])


@pytest.mark.parametrize("index", OUTSIDE)
def test_a_skipped_row_keeps_what_was_there(index: int) -> None:
    found = run(lambda *xs: picked(*xs, oob_mode=SKIP), table := draw(8, 5), rows(1, index))

    np.testing.assert_array_equal(found, [table[1], [7] * 5])


@pytest.mark.parametrize("index", OUTSIDE)
def test_an_index_out_of_bounds_is_an_error(index: int) -> None:
    refused("dma_copy", f"out of bounds 0..7: .{index}.", picked, draw(8, 5), rows(1, index))


def test_minus_one_as_uint32_is_out_of_bounds_too() -> None:
    index = rows(1, -1).view(np.uint32)

    found = run(lambda *xs: picked(*xs, oob_mode=SKIP), table := draw(8, 5), index)

    np.testing.assert_array_equal(found, [table[1], [7] * 5])


def test_a_scatter_writes_rows_and_skips_the_others() -> None:
    table, new, index = draw(8, 5), draw(7, 5, seed=1), rows(3, *OUTSIDE, 0)
    expected = table.copy()
    expected[[3, 0]] = new[[0, -1]]

    found = run(lambda *xs: scattered(*xs, oob_mode=SKIP), table, new, index)

    np.testing.assert_array_equal(found, expected)
    assert np.shares_memory(found, table)


def test_a_scatter_out_of_bounds_is_an_error() -> None:
    refused("dma_copy", "out of bounds", scattered, draw(8, 5), draw(2, 5), rows(0, -1))


def test_a_scatter_writes_no_row_twice() -> None:
    refused("dma_copy", "same row twice", scattered, draw(8, 5), draw(2, 5), rows(4, 4))


def test_a_scatter_comes_from_sbuf() -> None:
    def kernel(table, new, index):
        target = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=target, src=new)
        return table

    refused(
        "dma_copy",
        "source of a scatter must be in sbuf",
        kernel,
        draw(8, 5),
        draw(2, 5),
        rows(0, 1),
    )


def test_one_side_only_is_indirect() -> None:
    def kernel(table, index):
        source = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=source, src=source)
        return table

    refused("dma_copy", "both have a vector", kernel, draw(8, 5), rows(0, 1))


def test_a_row_stays_in_its_tensor() -> None:
    def kernel(table, index) -> None:
        source = table.ap([[5, 1], [1, 5]], offset=1, vector_offset=loaded(index))
        nisa.dma_copy(dst=tile(1, 5), src=source, oob_mode=SKIP)

    run(kernel, draw(8, 5), rows(6))
    refused("dma_copy", "leaves .* at index 7: element 40 of 40", kernel, draw(8, 5), rows(7))


def test_skipping_needs_a_run_time_index() -> None:
    def kernel(x) -> None:
        nisa.dma_copy(dst=tile(2, 5), src=x, oob_mode=SKIP)

    refused("dma_copy", "skip on a direct copy", kernel, draw(2, 5))


def test_a_skipped_start_address_moves_nothing() -> None:
    def kernel(x, start):
        register = nisa.register_alloc()
        nisa.register_load(register, loaded(start))
        found = filled(2, 5, value=7)
        source = x.ap([[5, 2], [1, 5]], scalar_offset=register)
        nisa.dma_copy(dst=found, src=source, oob_mode=SKIP)
        return copied_out(found)

    x = draw(8, 5)
    np.testing.assert_array_equal(run(kernel, x, rows(3)), x[3:5])
    np.testing.assert_array_equal(run(kernel, x, rows(-1)), np.full((2, 5), 7))
    refused("dma_copy", "leaves", kernel, x, rows(7))


def test_indices_are_a_column() -> None:
    def kernel(table, index) -> None:
        source = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=tile(2, 5), src=source)

    run(kernel, draw(8, 5), rows(0, 1))
    refused("dma_copy", r"need indices of shape \(2, 1\)", kernel, draw(8, 5), rows(0, 1, 2))
    refused("ap", "2-d int32 or uint32", kernel, draw(8, 5), rows(0, 1).astype(np.int16))


def test_both_sides_have_as_many_rows() -> None:
    def kernel(table, index) -> None:
        source = table.ap([[4, 2], [1, 4]], vector_offset=loaded(index))
        nisa.dma_copy(dst=tile(4, 2), src=source)

    refused("dma_copy", "picks 2 rows, the other side has 4", kernel, draw(8, 4), rows(0, 1))


def test_unread_rows_of_the_source_may_be_unwritten() -> None:
    def kernel(table, new, index):
        source = tile(2, 5)
        nisa.dma_copy(dst=source[0:1], src=new)
        target = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=target, src=source, oob_mode=SKIP)
        return table

    run(kernel, draw(8, 5), draw(1, 5), rows(4, -1))
    refused("dma_copy", "uninitialised", kernel, draw(8, 5), draw(1, 5), rows(4, 5))


def test_rows_that_a_gather_skipped_stay_unwritten() -> None:
    def kernel(table, index):
        found = tile(2, 5)
        source = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=found, src=source, oob_mode=SKIP)
        return copied_out(found)

    refused("dma_copy", "src reads uninitialised .* 5 of 10", kernel, draw(8, 5), rows(4, -1))


def test_sizes_agree() -> None:
    def kernel(x) -> None:
        nisa.dma_copy(dst=tile(2, 4), src=x)

    refused("dma_copy", "has 8 elements, src .* has 10", kernel, draw(2, 5))


def test_psum_is_out_of_reach() -> None:
    def kernel(x) -> None:
        nisa.dma_copy(dst=tile(2, 5, buffer=nl.psum), src=x)

    refused("dma_copy", "dst must be in sbuf", kernel, draw(2, 5))


def test_a_destination_repeats_no_element() -> None:
    def kernel(x) -> None:
        nisa.dma_copy(dst=tile(2, 1).broadcast(1, 5), src=x)

    refused("dma_copy", "repeats elements", kernel, draw(2, 5))


def test_copies_are_bit_exact() -> None:
    bits = np.array([[0x7FC1, 0xFFC1, 0x7F81, 0x8000, 0x0001]], np.uint16)  # NaN, -0, denormal
    x = bits.view(ml_dtypes.bfloat16)

    found = run(lambda t: copied_out(loaded(t)), x)

    np.testing.assert_array_equal(found.view(np.uint16), bits)


def test_conversions_go_by_way_of_fp32() -> None:
    def kernel(x):
        found = tile(1, 4, dtype=nl.uint32)
        nisa.dma_copy(dst=found, src=x)
        return copied_out(found)

    x = np.array([[-1, 3, 2**24 + 1, 2**31 - 1]], np.int32)
    np.testing.assert_array_equal(run(kernel, x), [[0, 3, 2**24, 2**31]])


def test_a_trace_tells_what_moved() -> None:
    trace = Trace()

    def kernel(table, index):
        found = filled(4, 6, value=0)
        source = table.ap([[24, 4], [8, 3], [1, 2]], vector_offset=loaded(index))
        nisa.dma_copy(dst=found, src=source, oob_mode=SKIP, name="blocks")
        return copied_out(found)

    run(kernel, draw(8, 24), rows(2, -1, 5, -1), trace=trace)
    gather = next(each for each in trace if each.label == "blocks")
    moved = gather.transfer
    assert moved is not None
    assert (gather.engine, gather.name, gather.partitions, gather.elements) == (
        "dma",
        "dma_copy",
        4,
        6,
    )
    assert (moved.bytes, moved.bytes_skipped) == (2 * 24, 2 * 24)
    assert (moved.descriptors, moved.run_bytes, moved.live_partitions) == (6, 8, 2)
    assert (moved.dge, moved.indirect) == ("swdge", "src")
    assert [each.role for each in gather.operands] == ["dst", "src", "indices"]
    assert gather.operands[1].tensor == "table"
    assert gather.where.startswith(__file__)
    assert len(trace) == 4
