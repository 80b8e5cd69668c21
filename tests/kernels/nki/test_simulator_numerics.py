"""Numerics: fp32 arithmetic, stores through the dtype, saturating integers, exact copies."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_rules import copied_out, draw, loaded, nisa, nl, run, tile

BF16 = ml_dtypes.bfloat16


def converted(x: np.ndarray, dtype: str) -> Any:
    def kernel(source):
        found = tile(*source.shape, dtype=dtype)
        nisa.tensor_copy(dst=found, src=loaded(source))
        return copied_out(found)

    return run(kernel, x)


@pytest.mark.parametrize(
    ("dtype", "values", "expected"),
    [
        (nl.int32, [0.5, 1.5, 2.5, -0.5, -1.5], [0, 2, 2, 0, -2]),
        (nl.int32, [3e9, -3e9, np.inf, -np.inf], [2**31 - 1, -(2**31), 2**31 - 1, -(2**31)]),
        (nl.uint32, [-1.0, 5e9, 2.5], [0, 2**32 - 1, 2]),
        (nl.uint8, [255.4, 255.5, 256.0, -3.0], [255, 255, 255, 0]),
        (nl.int8, [127.5, -128.5, -129.0], [127, -128, -128]),
    ],
)
def test_fp32_to_integers_rounds_to_even_and_saturates(
    dtype: str, values: list[float], expected: list[int]
) -> None:
    found = converted(np.array([values], np.float32), dtype)

    assert found[0].tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "stored"),
    [
        (nl.bfloat16, BF16),
        (nl.float16, np.float16),
        (nl.float8_e4m3, ml_dtypes.float8_e4m3),
        (nl.float8_e5m2, ml_dtypes.float8_e5m2),
    ],
)
def test_fp32_to_floats_rounds_to_even(dtype: str, stored: Any) -> None:
    x = draw(4, 64) * 8

    np.testing.assert_array_equal(converted(x, dtype), x.astype(stored))


def test_ties_of_bfloat16_go_to_even() -> None:
    x = np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32)

    assert converted(x, nl.bfloat16).astype(float).tolist() == [[1.0, 1 + 2**-6]]


def test_minus_one_becomes_zero_as_uint32() -> None:
    assert converted(np.array([[-1, 7]], np.int32), nl.uint32).tolist() == [[0, 7]]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint32, np.float32, BF16, np.float16])
def test_copies_between_equal_dtypes_keep_bits(dtype: Any) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (4, 64), np.uint8)
    x = raw.view(dtype)

    found = run(lambda t: copied_out(copied(loaded(t))), x)

    np.testing.assert_array_equal(found.view(np.uint8), raw)


def copied(source: Any) -> Any:
    found = tile(*source.shape, dtype=source.dtype)
    nisa.tensor_copy(dst=found, src=source)
    return found


def sum_of(x: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    def kernel(one, other):
        found = tile(*one.shape, dtype=one.dtype)
        nisa.tensor_tensor(found, loaded(one), loaded(other), nl.add, **options)
        return copied_out(found)

    return run(kernel, x, y)


def test_words_are_added_exactly_by_gpsimd_and_in_fp32_by_the_vector_engine() -> None:
    x, one = np.array([[2**24, 2**30]], np.int32), np.array([[1, 1]], np.int32)

    assert sum_of(x, one).tolist() == [[2**24 + 1, 2**30 + 1]]
    assert sum_of(x, one, engine=nisa.engine.vector).tolist() == [[2**24, 2**30]]


def test_words_wrap() -> None:
    x = np.array([[2**31 - 1]], np.int32)

    assert sum_of(x, np.array([[1]], np.int32)).tolist() == [[-(2**31)]]


def test_short_floats_are_added_in_fp32_and_rounded_once() -> None:
    x, y = draw(4, 64, dtype=BF16), draw(4, 64, seed=1, dtype=BF16)

    expected = (x.astype(np.float32) + y.astype(np.float32)).astype(BF16)
    np.testing.assert_array_equal(sum_of(x, y), expected)


def test_two_operators_round_once() -> None:
    def kernel(x):
        found = tile(4, 64, dtype=nl.bfloat16)
        nisa.tensor_scalar(found, loaded(x), nl.multiply, 3.0, op1=nl.add, operand1=-1.0)
        return copied_out(found)

    x = draw(4, 64, dtype=BF16)
    expected = (x.astype(np.float32) * 3 - 1).astype(BF16)
    np.testing.assert_array_equal(run(kernel, x), expected)


def test_comparisons_of_words_are_made_in_fp32() -> None:
    def kernel(x):
        found = tile(1, 2, dtype=nl.uint8)
        nisa.tensor_scalar(found, loaded(x), nl.greater, float(2**24))
        return copied_out(found)

    # 2**24 + 1 is no fp32: the engine cannot tell it from 2**24.
    assert run(kernel, np.array([[2**24 + 1, 2**24 + 2]], np.int32)).tolist() == [[0, 1]]


def test_matmuls_add_in_fp32() -> None:
    def kernel(x, y):
        found = tile(1, 1, buffer=nl.psum)
        nisa.nc_matmul(found, loaded(x), loaded(y))
        return copied_out(found)

    x = np.full((128, 1), 1.0, BF16)
    y = np.full((128, 1), 2.0**-9, BF16)
    y[0] = 1
    assert run(kernel, x, y)[0, 0] == np.float32(1 + 127 * 2.0**-9)


def test_the_largest_finite_negative_number_minus_itself_is_zero() -> None:
    def kernel(x):
        found, largest = tile(1, 4), tile(1, 1)
        mask = tile(1, 4, dtype=nl.uint8)
        nisa.memset(mask, 0)
        nisa.select_reduce(
            found, mask, loaded(x), -3.4028235e38, largest, nisa.reduce_cmd.reset_reduce
        )
        nisa.tensor_scalar(largest, largest, nl.multiply, -1.0)
        nisa.activation(found, nl.exp, found, bias=largest)
        return copied_out(found)

    assert run(kernel, draw(1, 4)).tolist() == [[1.0] * 4]
