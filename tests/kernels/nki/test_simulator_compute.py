"""Vector, Scalar and GpSimd engines: operands, dtypes and places of each instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

PSUM = nl.psum
GPSIMD, VECTOR, SCALAR = nisa.engine.gpsimd, nisa.engine.vector, nisa.engine.scalar


@pytest.mark.parametrize(
    ("count", "allowed"), [(1, (0, 32, 64, 96)), (32, (0, 32, 64, 96)), (33, (0, 64)), (65, (0,))]
)
def test_tiles_start_at_quarters(count: int, allowed: tuple[int, ...]) -> None:
    def kernel(start: int) -> None:
        nisa.memset(dst=tile(128, 2)[start : start + count], value=0)

    for start in (0, 16, 32, 64, 96):
        if start + count > 128:
            continue
        if start in allowed:
            run(kernel, start)
        else:
            refused("memset", f"starts at partition {start}", kernel, start)


def test_operands_are_tensors_on_chip() -> None:
    def kernel(x) -> None:
        nisa.tensor_copy(dst=tile(2, 3), src=x)

    refused("tensor_copy", "src must be in sbuf or psum", kernel, draw(2, 3))
    refused("tensor_copy", "src must be a tensor, got 1.0", kernel, 1.0)


def test_gathered_operands_are_for_dmas() -> None:
    def kernel(x) -> None:
        nisa.tensor_copy(dst=tile(1, 3), src=x.vector_select(0, filled(1, 1, dtype=nl.int32)))

    refused("tensor_copy", "in sbuf or psum", kernel, draw(2, 3))


def test_a_pattern_has_five_dimensions() -> None:
    def kernel() -> None:
        nisa.memset(dst=tile(2, 16).reshape((2, 2, 2, 2, 2, 1)), value=0)

    refused("memset", "has 6 dimensions, an access pattern at most 5", kernel)


def test_a_written_tile_repeats_no_element() -> None:
    def kernel() -> None:
        nisa.memset(dst=tile(2, 1).broadcast(1, 4), value=0)

    refused("memset", "repeats elements", kernel)


@pytest.mark.parametrize(
    ("dtype", "value", "problem"),
    [
        (nl.int32, 2.0, "2.0 is no int32"),
        (nl.uint8, 256, "256 is no uint8"),
        (nl.uint32, -1, "-1 is no uint32"),
        (nl.float32, "0", "must be a number"),
    ],
)
def test_memset_takes_a_value_of_the_dtype(dtype: str, value: Any, problem: str) -> None:
    refused("memset", problem, lambda: filled(2, 3, value=value, dtype=dtype))


def test_memset_runs_on_two_engines() -> None:
    def kernel(engine: Any, buffer: Any) -> None:
        nisa.memset(dst=tile(2, 3, buffer=buffer), value=0, engine=engine)

    run(kernel, GPSIMD, nl.sbuf)
    refused("memset", "runs on vector or gpsimd", kernel, SCALAR, nl.sbuf)
    refused("memset", "gpsimd cannot access psum", kernel, GPSIMD, PSUM)


def test_tensor_copy_runs_on_the_scalar_engine_from_trn2_on() -> None:
    def kernel() -> None:
        nisa.tensor_copy(dst=tile(2, 3), src=filled(2, 3), engine=SCALAR)

    run(kernel)
    refused("tensor_copy", "runs on vector or gpsimd", kernel, target="trn1")


def test_copies_agree_in_size() -> None:
    def kernel() -> None:
        nisa.tensor_copy(dst=tile(2, 4), src=filled(2, 3))

    refused("tensor_copy", "must agree: dst .2, 4., src .2, 3.", kernel)


def test_predicated_copies_change_chosen_elements_only() -> None:
    def kernel(x, chosen):
        found = filled(2, 3, value=7)
        nisa.tensor_copy_predicated(dst=found, src=loaded(x), predicate=loaded(chosen))
        nisa.tensor_copy_predicated(
            dst=found, src=9.0, predicate=loaded(chosen)[:, 0:3], reverse_pred=True
        )
        return copied_out(found)

    x, chosen = draw(2, 3), np.array([[1, 0, 255], [0, 0, 1]], np.uint8)
    np.testing.assert_array_equal(run(kernel, x, chosen), np.where(chosen, x, 9))


def test_predicated_copies_write_chosen_elements_only() -> None:
    def kernel(chosen):
        found = tile(2, 3)
        nisa.tensor_copy_predicated(dst=found, src=1.0, predicate=loaded(chosen))
        return copied_out(found)

    refused("dma_copy", "2 of 6 elements", kernel, np.array([[1, 0, 1], [1, 1, 0]], np.uint8))


def test_predicated_copies_have_rules() -> None:
    def kernel(dtype: str, predicate: str, buffer: Any) -> None:
        nisa.tensor_copy_predicated(
            dst=tile(2, 3),
            src=filled(2, 3, dtype=dtype, buffer=buffer),
            predicate=filled(2, 3, dtype=predicate, buffer=buffer),
        )

    refused("tensor_copy_predicated", "one dtype", kernel, nl.bfloat16, nl.uint8, nl.sbuf)
    refused("tensor_copy_predicated", "uint8, uint16", kernel, nl.float32, nl.int8, nl.sbuf)
    refused("tensor_copy_predicated", "both be in psum", kernel, nl.float32, nl.uint8, PSUM)


def test_predicated_copies_of_what_is_not_chosen_take_constants_only() -> None:
    def kernel(dtype: str, src: float | None, shape: tuple[int, ...] = (2, 3)) -> None:
        dst = filled(*shape, dtype=dtype)
        source = filled(*shape, dtype=dtype) if src is None else src
        nisa.tensor_copy_predicated(
            dst=dst,
            src=source,
            predicate=filled(*shape, dtype=nl.uint8),
            reverse_pred=True,
        )

    refused("tensor_copy_predicated", "reverse_pred is for constants", kernel, nl.int32, None)
    refused("tensor_copy_predicated", "kind of dst, got 1.0 for int32", kernel, nl.int32, 1.0)
    refused("tensor_copy_predicated", "kind of dst, got -1 for float32", kernel, nl.float32, -1)
    shape = (2, 3, 1, 1, 1)
    refused("tensor_copy_predicated", "4 free dimensions, at most 3", kernel, nl.int32, -1, shape)


def test_iota_counts() -> None:
    def kernel():
        found = tile(3, 8, dtype=nl.int32)
        nisa.iota(found, [[10, 2], [1, 4]], offset=5, channel_multiplier=100)
        return copied_out(found)

    expected = 5 + 100 * np.arange(3)[:, None] + np.array([0, 1, 2, 3, 10, 11, 12, 13])
    np.testing.assert_array_equal(run(kernel), expected)


@pytest.mark.parametrize(
    ("pattern", "offset", "problem"),
    [
        ([[1, 7]], 0, "has 7 elements"),
        ([[1, 1]] * 4 + [[1, 8]], 0, "no list of 1 to 4"),
        ([[1, 8], [1, 0]], 0, "count below 1"),
        ([[1, 8]], 2**31, "must be an int32"),
        ([[1, 8]], 1.0, "must be an int32"),
    ],
)
def test_patterns_have_rules(pattern: Any, offset: Any, problem: str) -> None:
    refused("iota", problem, lambda: nisa.iota(tile(3, 8), pattern, offset=offset) and None)


def test_iota_writes_sbuf() -> None:
    refused("iota", "dst must be in sbuf", lambda: nisa.iota(tile(3, 8, buffer=PSUM), [[1, 8]]))


def test_affine_select_is_a_causal_mask() -> None:
    def kernel(x):
        found = tile(4, 4)
        nisa.affine_select(
            dst=found,
            pattern=[[-1, 4]],
            channel_multiplier=1,
            on_true_tile=loaded(x),
            on_false_value=-1.0,
            cmp_op=nl.greater_equal,
        )
        return copied_out(found)

    x = draw(4, 4)
    np.testing.assert_array_equal(run(kernel, x), np.where(np.tri(4, dtype=bool), x, -1))


def test_affine_select_has_rules() -> None:
    def kernel(op: Any, value: Any, buffer: Any) -> None:
        source = filled(4, 4, buffer=buffer)
        nisa.affine_select(tile(4, 4), [[1, 4]], 1, source, value, cmp_op=op)

    refused("affine_select", "cmp_op must be one of", kernel, nl.add, 0.0, nl.sbuf)
    refused("affine_select", "must be a float", kernel, nl.less, 0, nl.sbuf)
    refused("affine_select", "in sbuf", kernel, nl.less, 0.0, PSUM)
