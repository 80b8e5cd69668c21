"""dma_transpose: direct and gathered transpositions, and each of their constraints."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

from noria.kernels.nki.simulator import Trace

SKIP = nisa.oob_mode.skip
BF16 = ml_dtypes.bfloat16


def names(*values: int, size: int = 32) -> np.ndarray:
    found = np.zeros((size, 1), np.uint32)
    found[: len(values), 0] = values
    return found


def gathered(table: Any, index: Any, **options: Any) -> Any:
    count, width = index.size, table.shape[1]
    found = filled(width, count, value=7, dtype=table.dtype)
    source = table.ap([[width, count], [1, width]], vector_offset=loaded(index))
    nisa.dma_transpose(dst=found, src=source, **options)
    return copied_out(found)


@pytest.mark.parametrize(
    ("shape", "axes"), [((5, 7), (1, 0)), ((3, 4, 5), (2, 1, 0)), ((2, 3, 4, 5), (3, 1, 2, 0))]
)
def test_first_and_last_dimensions_are_exchanged(shape: Any, axes: Any) -> None:
    def kernel(x):
        found = tile(*(shape[axis] for axis in axes))
        nisa.dma_transpose(dst=found, src=x, axes=axes)
        return copied_out(found)

    x = draw(*shape)
    np.testing.assert_array_equal(run(kernel, x), x.transpose(axes))


def test_gathered_rows_become_columns() -> None:
    table, index = draw(64, 8, dtype=BF16), names(*range(31, -1, -1))

    np.testing.assert_array_equal(run(gathered, table, index), table[index[:, 0]].T)


def test_indices_are_read_column_by_column() -> None:
    table = draw(512, 8, dtype=BF16)
    index = np.random.default_rng(0).permutation(512)[:256].reshape(128, 2).astype(np.uint32)

    np.testing.assert_array_equal(run(gathered, table, index), table[index.T.ravel()].T)


def test_blocks_are_gathered_in_four_dimensions() -> None:
    def kernel(table, index):
        found = filled(8, 3, 1, 16, dtype=nl.bfloat16)
        source = table.ap([[24, 16], [8, 3], [8, 1], [1, 8]], vector_offset=loaded(index))
        nisa.dma_transpose(dst=found, src=source, axes=(3, 1, 2, 0))
        return copied_out(found)

    table, index = draw(32, 3, 1, 8, dtype=BF16), names(*range(16, 32), size=16)
    np.testing.assert_array_equal(run(kernel, table, index), table[16:32].transpose(3, 1, 2, 0))


def test_minus_one_saturates_to_block_zero() -> None:
    def kernel(table, index):
        saturated = tile(16, 1, dtype=nl.uint32)
        nisa.tensor_copy(dst=saturated, src=loaded(index))
        found = tile(8, 16, dtype=nl.bfloat16)
        source = table.ap([[8, 16], [1, 8]], vector_offset=saturated)
        nisa.dma_transpose(dst=found, src=source)
        return copied_out(found)

    table, index = draw(32, 8, dtype=BF16), np.full((16, 1), -1, np.int32)
    index[:3, 0] = (5, 9, 31)
    np.testing.assert_array_equal(run(kernel, table, index), table[np.maximum(index[:, 0], 0)].T)


def test_an_index_out_of_bounds_is_an_error() -> None:
    refused(
        "dma_transpose", "out of bounds 0..63", gathered, draw(64, 8, dtype=BF16), names(2**32 - 1)
    )


def test_skipped_rows_leave_their_columns() -> None:
    def kernel(*arrays):
        return gathered(*arrays, oob_mode=SKIP)

    table, index = draw(64, 8, dtype=BF16), names(*range(16), *[2**32 - 1] * 16)
    found = run(kernel, table, index)
    np.testing.assert_array_equal(found[:, :16], table[:16].T)
    assert (found[:, 16:] == 7).all()


def test_sixteen_indices_at_a_time_are_in_bounds() -> None:
    def kernel(*arrays):
        return gathered(*arrays, oob_mode=SKIP)

    index = names(*range(17), *[2**32 - 1] * 15)
    refused(
        "dma_transpose",
        "17 of 32 indices .* multiple of 16",
        kernel,
        draw(64, 8, dtype=BF16),
        index,
    )


@pytest.mark.parametrize(
    ("table", "index", "problem"),
    [
        (draw(64, 8, dtype=BF16), names().view(np.int32), "indices must be uint32"),
        (draw(64, 8, dtype=BF16), names(size=24), "src.shape.0. must be a multiple of 16"),
        (draw(64, 8), names(), "2-byte dtype"),
        (draw(64, 8, dtype=BF16), np.zeros((64, 2), np.uint32), "must have 128 rows"),
    ],
)
def test_gathers_have_rules(table: Any, index: Any, problem: str) -> None:
    refused("dma_transpose", problem, gathered, table, index)


@pytest.mark.parametrize(
    ("size", "problem"), [(32, "32 indices are too few for the 48 rows"), (40, "multiple of 16")]
)
def test_there_are_enough_indices(size: int, problem: str) -> None:
    def kernel(table, index) -> None:
        source = table.ap([[8, 48], [1, 8]], vector_offset=loaded(index))
        nisa.dma_transpose(dst=tile(8, 48, dtype=nl.bfloat16), src=source)

    refused("dma_transpose", problem, kernel, draw(64, 8, dtype=BF16), names(size=size))


def test_one_dimension_of_four_is_one() -> None:
    def kernel(table, index) -> None:
        source = table.ap([[8, 16], [4, 2], [2, 2], [1, 2]], vector_offset=loaded(index))
        nisa.dma_transpose(dst=tile(2, 2, 2, 16, dtype=nl.bfloat16), src=source)

    refused(
        "dma_transpose",
        "1 or 2 of a 4-d src must be 1",
        kernel,
        draw(64, 8, dtype=BF16),
        names(size=16),
    )


def test_gathers_need_trn2() -> None:
    refused(
        "dma_transpose", "needs trn2", gathered, draw(64, 8, dtype=BF16), names(), target="trn1"
    )


@pytest.mark.parametrize("mode", [nisa.dge_mode.hwdge, nisa.dge_mode.none])
def test_gathers_have_their_descriptors_made_by_software(mode: Any) -> None:
    def kernel(*arrays):
        return gathered(*arrays, dge_mode=mode)

    refused("dma_transpose", "needs swdge", kernel, draw(64, 8, dtype=BF16), names())


@pytest.mark.parametrize(
    ("shape", "options", "problem"),
    [
        ((5, 7), {"axes": (0, 1)}, "axes .0, 1. of a 2-d src"),
        ((2, 3, 5), {"axes": (1, 0)}, "axes"),
        ((5, 7), {"oob_mode": SKIP}, "skip on a direct src"),
        ((5, 7), {"dge_mode": nisa.dge_mode.swdge}, "unknown or hwdge"),
        ((5, 7), {"dge_mode": nisa.dge_mode.hwdge}, "hwdge transposes .16,. rows"),
        ((2, 3, 8), {"dge_mode": nisa.dge_mode.hwdge}, "multiple of 16, got"),
        ((16, 8), {"dge_mode": nisa.dge_mode.hwdge}, "2-byte dtype"),
    ],
)
def test_direct_transpositions_have_rules(shape: Any, options: Any, problem: str) -> None:
    def kernel(x) -> None:
        nisa.dma_transpose(dst=tile(*shape[::-1]), src=x, **options)

    refused("dma_transpose", problem, kernel, draw(*shape))


def test_the_destination_has_the_transposed_shape_and_dtype() -> None:
    def kernel(x, shape: Any, dtype: str) -> None:
        nisa.dma_transpose(dst=tile(*shape, dtype=dtype), src=x)

    refused("dma_transpose", "transposed shape .7, 5.", kernel, draw(5, 7), (5, 7), nl.float32)
    refused("dma_transpose", "transposed shape", kernel, draw(5, 7), (7, 5, 1), nl.float32)
    refused("dma_transpose", "must have one dtype", kernel, draw(5, 7), (7, 5), nl.bfloat16)


def test_the_destination_is_in_sbuf() -> None:
    def kernel(x) -> None:
        nisa.dma_transpose(dst=tile(7, 5, buffer=nl.shared_hbm), src=x)

    refused("dma_transpose", "dst must be in sbuf", kernel, draw(5, 7))


def test_a_trace_tells_what_moved() -> None:
    trace = Trace()

    def kernel(*arrays):
        return gathered(*arrays, oob_mode=SKIP, name="keys")

    index = names(*range(16), *[2**32 - 1] * 16)
    run(kernel, draw(64, 8, dtype=BF16), index, trace=trace)
    moved = next(each.transfer for each in trace if each.label == "keys")
    assert moved is not None
    assert (moved.bytes, moved.bytes_skipped, moved.transpose) == (256, 256, True)
    assert (moved.descriptors, moved.run_bytes, moved.live_partitions) == (16, 16, 8)
