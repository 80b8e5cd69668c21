"""Elementwise arithmetic and reductions: results, and the rules of their operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

PSUM, SCALAR = nl.psum, nisa.engine.scalar


def elementwise(op: Any, **options: Any) -> Any:
    def kernel(x, y):
        found = tile(*x.shape, dtype=x.dtype)
        nisa.tensor_tensor(dst=found, data1=loaded(x), data2=loaded(y), op=op, **options)
        return copied_out(found)

    return kernel


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (nl.add, np.add),
        (nl.subtract, np.subtract),
        (nl.multiply, np.multiply),
        (nl.maximum, np.maximum),
        (nl.minimum, np.minimum),
        (nl.less, np.less),
        (nl.greater_equal, np.greater_equal),
        (nl.logical_and, np.logical_and),
    ],
)
def test_operators_of_two_tiles(op: Any, expected: Any) -> None:
    x, y = np.round(draw(4, 6)), np.round(draw(4, 6, seed=1))

    np.testing.assert_array_equal(run(elementwise(op), x, y), expected(x, y).astype(np.float32))


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (nl.bitwise_and, np.bitwise_and),
        (nl.bitwise_xor, np.bitwise_xor),
        (nl.left_shift, np.left_shift),
    ],
)
def test_operators_on_bits(op: Any, expected: Any) -> None:
    x, y = np.array([[1, 7, -8]], np.int32), np.array([[3, 2, 1]], np.int32)

    np.testing.assert_array_equal(run(elementwise(op), x, y), expected(x, y))


def test_tensor_tensor_has_rules() -> None:
    def kernel(places: Any, op: Any, **options: Any) -> Any:
        def body() -> None:
            one, other = (filled(2, 3, buffer=buffer) for buffer in places)
            nisa.tensor_tensor(tile(2, 3), one, other, op, **options)

        return body

    both = (nl.sbuf, nl.sbuf)
    name = "tensor_tensor"
    run(kernel((nl.sbuf, PSUM), nl.add))
    refused(name, "cannot both be in psum", kernel((PSUM, PSUM), nl.add))
    refused(name, "integers of one width", kernel(both, nl.bitwise_and))
    refused(name, "no binary operator", kernel(both, nl.exp))
    refused(name, "must be an operator", kernel(both, np.add))
    refused(name, "runs on", kernel(both, nl.add, engine=SCALAR))
    refused(name, "gpsimd cannot access psum", kernel((PSUM, nl.sbuf), nl.power))


def scalar(op0: Any, operand0: Any, *rest: Any, **options: Any) -> Any:
    def kernel(x):
        found = tile(*x.shape, dtype=x.dtype)
        nisa.tensor_scalar(found, loaded(x), op0, operand0, *rest, **options)
        return copied_out(found)

    return kernel


def test_two_operators_in_one_instruction() -> None:
    x = draw(3, 4)
    kernel = scalar(nl.multiply, 2.0, op1=nl.subtract, operand1=1.0, reverse1=True)

    np.testing.assert_array_equal(run(kernel, x), 1 - x * 2)


def test_an_operand_per_partition() -> None:
    def kernel(x, column):
        found = tile(3, 4)
        nisa.tensor_scalar(found, loaded(x), nl.subtract, loaded(column), reverse0=True)
        return copied_out(found)

    x, column = draw(3, 4), draw(3, 1)
    np.testing.assert_array_equal(run(kernel, x, column), column - x)


def test_shifts_are_logical() -> None:
    x = np.array([[-2, 2, 8]], np.int32)

    found = run(scalar(nl.right_shift, 1), x)

    np.testing.assert_array_equal(found.view(np.uint32), x.view(np.uint32) >> 1)


def test_tensor_scalar_has_rules() -> None:
    x, name = draw(3, 4), "tensor_scalar"

    def kernel(column) -> None:
        nisa.tensor_scalar(tile(3, 4), filled(3, 4), nl.add, loaded(column))

    refused(name, "operand0 must be float32", kernel, np.ones((3, 1), np.int32))
    refused(name, r"must have shape \(3, 1\)", kernel, draw(3, 2))
    refused(name, "without op1", scalar(nl.add, 1.0, operand1=1.0), x)
    refused(name, "both be bitvec or both", scalar(nl.add, 1.0, op1=nl.bitwise_and, operand1=1), x)
    refused(name, "integers of one width", scalar(nl.bitwise_and, 1), x)
    refused(name, "must be None or 0", scalar(nl.abs, 1.0), x)
    refused(name, "no operator of this", scalar(nl.exp, 1.0), x)
    refused(name, "runs on", scalar(nl.subtract, 1.0, engine=SCALAR), x)
    refused(name, "does not fit into 32 bits", scalar(nl.bitwise_and, 2**32), x.view(np.int32))
    run(scalar(nl.multiply, 2.0, op1=nl.add, operand1=1.0, engine=SCALAR), x)


def reduced(op: Any, axis: Any, shape: Any, **options: Any) -> Any:
    def kernel(x):
        found = tile(*shape)
        nisa.tensor_reduce(dst=found, op=op, data=loaded(x), axis=axis, **options)
        return copied_out(found)

    return kernel


def test_reductions() -> None:
    x = draw(3, 4, 5)
    largest = run(reduced(nl.maximum, 2, (3, 4)), x)
    total = run(reduced(nl.add, (1, 2), (3, 1), negate=True), x)

    np.testing.assert_array_equal(largest, x.max(2))
    np.testing.assert_allclose(total[:, 0], -x.sum((1, 2)), rtol=1e-5)


def test_reductions_have_rules() -> None:
    x, name = draw(3, 4, 5), "tensor_reduce"
    refused(name, "last free dimensions", reduced(nl.add, 1, (3, 5)), x)
    refused(name, "last free dimensions", reduced(nl.add, (0, 1, 2), (3, 1)), x)
    refused(name, "leaves .3, 4., dst", reduced(nl.add, 2, (3, 5)), x)
    refused(name, "no reduction operator", reduced(nl.less, 2, (3, 4)), x)
    refused(name, "with keepdims dst", reduced(nl.add, 2, (3, 4), keepdims=True), x)
    run(reduced(nl.add, 2, (3, 4, 1), keepdims=True), x)


def test_reciprocal() -> None:
    def kernel(x):
        found = tile(3, 4)
        nisa.reciprocal(dst=found, data=loaded(x))
        return copied_out(found)

    x = draw(3, 4)
    np.testing.assert_array_equal(run(kernel, x), 1 / x)
