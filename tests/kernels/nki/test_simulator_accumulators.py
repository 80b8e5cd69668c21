"""Instructions that reduce into accumulator registers: activation and compound ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

IDLE, REDUCE, RESET = (
    nisa.reduce_cmd.idle,
    nisa.reduce_cmd.reduce,
    nisa.reduce_cmd.reset_reduce,
)
FP32_MIN = -3.4028235e38


def activated(op: Any, **options: Any) -> Any:
    def kernel(x):
        found = tile(*x.shape)
        nisa.activation(dst=found, op=op, data=loaded(x), **options)
        return copied_out(found)

    return kernel


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (nl.exp, np.exp),
        (nl.tanh, np.tanh),
        (nl.square, np.square),
        (nl.copy, np.copy),
        (nl.relu, lambda x: np.maximum(x, 0)),
        (nl.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
        (nl.silu, lambda x: x / (1 + np.exp(-x))),
        (nl.gelu_apprx_tanh, lambda x: x / (1 + np.exp(-1.5957691 * (x + 0.044715 * x**3)))),
    ],
)
def test_activation_functions(op: Any, expected: Any) -> None:
    x = draw(3, 4)

    np.testing.assert_allclose(run(activated(op), x), expected(x), rtol=2e-5, atol=1e-6)


def test_scale_and_bias_come_first() -> None:
    def kernel(x, bias):
        found = tile(3, 4)
        nisa.activation(found, nl.exp, loaded(x), bias=loaded(bias), scale=0.5)
        return copied_out(found)

    x, bias = draw(3, 4), draw(3, 1)
    np.testing.assert_allclose(run(kernel, x, bias), np.exp(x * 0.5 + bias), rtol=1e-6)


def test_sums_run_on_over_instructions() -> None:
    def kernel(x):
        found, total = tile(3, 4), tile(3, 1)
        for half, command in ((0, RESET), (4, REDUCE)):
            nisa.activation(
                found,
                nl.exp,
                loaded(x[:, half : half + 4]),
                reduce_op=nl.add,
                reduce_res=total,
                reduce_cmd=command,
            )
        return copied_out(total)

    x = draw(3, 8)
    np.testing.assert_allclose(run(kernel, x), np.exp(x).sum(1, keepdims=True), rtol=1e-6)


def test_activation_reduce_starts_from_zero() -> None:
    def kernel(x):
        found, total = tile(3, 4), tile(3, 1)
        for _ in range(2):
            nisa.activation_reduce(found, nl.copy, loaded(x), nl.add, total)
        return copied_out(total)

    x = draw(3, 4)
    np.testing.assert_allclose(run(kernel, x), x.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)


def test_registers_that_nothing_reset_are_not_used() -> None:
    def kernel(rows: int, command: Any) -> None:
        found = tile(4, 4)
        nisa.activation(found[0:2], nl.exp, filled(2, 4), reduce_op=nl.add, reduce_cmd=RESET)
        nisa.activation(
            found[0:rows],
            nl.exp,
            filled(rows, 4),
            reduce_op=nl.add,
            reduce_res=tile(rows, 1),
            reduce_cmd=command,
        )

    run(kernel, 2, REDUCE)
    refused("activation", "registers of 4 lanes are used, but 2 of them", kernel, 4, REDUCE)
    refused("activation", "registers of 4 lanes are used", kernel, 4, IDLE)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"op": nl.add}, "no activation function"),
        ({"op": nl.exp, "reduce_op": nl.maximum, "reduce_cmd": RESET}, "must be nl.add"),
        ({"op": nl.exp, "reduce_cmd": nisa.reduce_cmd.load_reduce}, "load_reduce is no command"),
        ({"op": nl.exp, "scale": "1"}, "scale must be a number"),
    ],
)
def test_activation_has_rules(options: dict[str, Any], problem: str) -> None:
    refused("activation", problem, activated(**options), draw(3, 4))


def test_scale_is_fp32() -> None:
    def kernel() -> None:
        nisa.activation(tile(3, 4), nl.exp, filled(3, 4), scale=filled(3, 1, dtype=nl.bfloat16))

    refused("activation", "scale must be float32", kernel)


def test_a_constant_bias_needs_trn2() -> None:
    run(activated(nl.exp, bias=1.0), draw(3, 4))
    refused(
        "activation",
        "constant bias needs trn2",
        activated(nl.exp, bias=1.0),
        draw(3, 4),
        target="trn1",
    )


@pytest.mark.parametrize(
    ("op", "value"),
    [(nl.log, 0.0), (nl.sqrt, -1.0), (nl.rsqrt, 0.0), (nl.reciprocal, 0.0), (nl.sin, 4.0)],
)
def test_functions_are_valid_in_a_range(op: Any, value: float) -> None:
    refused("activation", "is valid for", activated(op), np.full((1, 1), value, np.float32))


def test_two_operators_with_a_whole_tile() -> None:
    def kernel(x, y, column):
        found = tile(3, 4)
        operands = (loaded(x), nl.multiply, loaded(column), nl.add, loaded(y))
        nisa.scalar_tensor_tensor(found, *operands)
        return copied_out(found)

    x, y, column = draw(3, 4), draw(3, 4, seed=1), draw(3, 1)
    np.testing.assert_array_equal(run(kernel, x, y, column), x * column + y)


@pytest.mark.parametrize(("op", "numpy_op"), [(nl.add, np.sum), (nl.maximum, np.max)])
def test_tensor_scalar_reduce(op: Any, numpy_op: Any) -> None:
    def kernel(x):
        found, result = tile(3, 4), tile(3, 1)
        nisa.tensor_scalar_reduce(found, loaded(x), nl.multiply, 2.0, op, result)
        return copied_out(result)

    x = draw(3, 4)
    expected = numpy_op(x * 2, axis=1, keepdims=True)
    np.testing.assert_allclose(run(kernel, x), expected, rtol=1e-5, atol=1e-6)


def test_tensor_scalar_reduce_has_rules() -> None:
    def kernel(**options: Any) -> Any:
        given = {"reduce_op": nl.add, "reduce_res": None, **options}
        return lambda: nisa.tensor_scalar_reduce(
            tile(3, 4), filled(3, 4), nl.multiply, 2.0, **given
        )

    name, load = "tensor_scalar_reduce", nisa.reduce_cmd.load_reduce
    refused(name, "not reset before", kernel(reduce_cmd=REDUCE))
    refused(name, "reduce_init goes with", kernel(reduce_cmd=load))
    refused(name, "reduce_init goes with", kernel(reduce_init=1.0))
    refused(name, "must be one of", kernel(reduce_op=nl.subtract))
    refused(name, "not supported yet", kernel(reverse0=True))
    run(kernel(reduce_cmd=load, reduce_init=1.0))


def test_a_scan_runs_along_rows() -> None:
    def kernel(x, y):
        found = tile(3, 6)
        nisa.tensor_tensor_scan(found, loaded(x), loaded(y), 1.0, nl.multiply, nl.add)
        return copied_out(found)

    x, y = draw(3, 6), draw(3, 6, seed=1)
    state, expected = np.ones(3, np.float32), np.empty((3, 6), np.float32)
    for i in range(6):
        state = expected[:, i] = x[:, i] * state + y[:, i]
    np.testing.assert_array_equal(run(kernel, x, y), expected)


def test_a_shuffle_moves_partitions_within_quadrants() -> None:
    def kernel(x):
        found = filled(64, 2, value=7)
        nisa.nc_stream_shuffle(found, loaded(x), [1, 0, 255, *[3] * 29])
        return copied_out(found)

    x = draw(64, 2)
    found = run(kernel, x)
    np.testing.assert_array_equal(found[:2], x[[1, 0]])
    np.testing.assert_array_equal(found[2], [7, 7])
    np.testing.assert_array_equal(found[35:], np.repeat(x[35:36], 29, 0))


def test_shuffles_have_rules() -> None:
    def kernel(mask: Any, dtype: str = nl.float32) -> Any:
        return lambda: nisa.nc_stream_shuffle(tile(32, 2), filled(4, 2, dtype=dtype), mask)

    refused("nc_stream_shuffle", "must be 32 partitions", kernel([0] * 31))
    refused("nc_stream_shuffle", "must be 32 partitions", kernel([32] * 32))
    refused("nc_stream_shuffle", "takes partition 5 of src", kernel([5] * 32))
    refused("nc_stream_shuffle", "one dtype", kernel([0] * 32, nl.bfloat16))
