"""The remaining rules of operands: one refused call each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

REDUCE = nisa.reduce_cmd.reduce
RESET = nisa.reduce_cmd.reset_reduce


def words(*values: int, dtype: str = nl.int32) -> Any:
    found = tile(1, len(values), dtype=dtype)
    for column, value in enumerate(values):
        nisa.memset(dst=found[:, column : column + 1], value=value)
    return found


def register(value: int) -> Any:
    return nisa.register_alloc(value)


CALLS: list[tuple[str, str, Callable[[Any], Any]]] = [
    (
        "dma_copy",
        "one int32 or uint32 element",
        lambda x: nisa.dma_copy(tile(1, 4), x.ap([[4, 1], [1, 4]], scalar_offset=words(0, 0))),
    ),
    (
        "dma_copy",
        "run-time index -1 is out of bounds 0..5",
        lambda x: nisa.dma_copy(tile(1, 4), x.ap([[4, 1], [1, 4]], scalar_offset=register(-1))),
    ),
    (
        "dma_copy",
        "the other a scalar one",
        lambda x: nisa.dma_copy(
            tile(1, 8).ap([[8, 1], [1, 4]], scalar_offset=register(0), indirect_dim=1),
            x.ap([[4, 1], [1, 4]], vector_offset=words(0)),
        ),
    ),
    (
        "dma_transpose",
        "dst must be direct",
        lambda x: nisa.dma_transpose(
            tile(4, 8).ap([[8, 4], [1, 6]], scalar_offset=register(0), indirect_dim=1), x
        ),
    ),
    (
        "vector_select",
        "indirect already",
        lambda x: x.select(0, words(0)).reshape((4, 1)).vector_select(0, words(0)),
    ),
    ("expand_dim", "cannot be inserted", lambda x: x.expand_dim(3)),
    ("__getitem__", "is no integer, slice", lambda x: x["all"]),
    ("select", "which cannot be dropped", lambda x: loaded(x).select(0, 1)),
    ("ds", "nl.ds takes integers", lambda x: x[nl.ds(register(0), 1)]),
    ("broadcast_to", "cannot be broadcast", lambda x: nl.broadcast_to(loaded(x), (6, 8))),
    ("program_id", "has one axis", lambda x: nl.program_id(1)),
    (
        "activation_reduce",
        "must be nl.add",
        lambda x: nisa.activation_reduce(tile(6, 4), nl.exp, loaded(x), nl.maximum, tile(6, 1)),
    ),
    (
        "tensor_scalar_reduce",
        "must be reduce, reset_reduce or load_reduce",
        lambda x: nisa.tensor_scalar_reduce(
            tile(6, 4), loaded(x), nl.add, 1.0, nl.add, reduce_cmd=nisa.reduce_cmd.idle
        ),
    ),
    (
        "nc_stream_shuffle",
        "elements per partition must agree",
        lambda x: nisa.nc_stream_shuffle(tile(6, 3), loaded(x), [0] * 32),
    ),
    (
        "scalar_tensor_tensor",
        "op1 must be a binary arithmetic operator",
        lambda x: nisa.scalar_tensor_tensor(
            tile(6, 4), loaded(x), nl.add, 1.0, nl.bitwise_and, loaded(x)
        ),
    ),
    (
        "scalar_tensor_tensor",
        "data and operand1 cannot both be in psum",
        lambda x: nisa.scalar_tensor_tensor(
            tile(6, 4), psum := filled(6, 4, buffer=nl.psum), nl.add, 1.0, nl.add, psum
        ),
    ),
    (
        "tensor_scalar",
        "must be an integer, got 1.0",
        lambda x: nisa.tensor_scalar(tile(1, 2, dtype=nl.int32), words(1, 2), nl.bitwise_or, 1.0),
    ),
    (
        "tensor_scalar",
        "an integer tile as wide as data",
        lambda x: nisa.tensor_scalar(
            tile(1, 2, dtype=nl.int32), words(1, 2), nl.bitwise_or, words(1, dtype=nl.uint8)
        ),
    ),
    (
        "tensor_scalar",
        "operand0 must be a number or a tile, got None",
        lambda x: nisa.tensor_scalar(tile(6, 4), loaded(x), nl.add, None),
    ),
    (
        "tensor_reduce",
        "negate is for arithmetic",
        lambda x: nisa.tensor_reduce(
            tile(1, 1, dtype=nl.int32), nl.bitwise_or, words(1, 2), axis=1, negate=True
        ),
    ),
    ("register_move", "an integer or a register", lambda x: nisa.register_move(register(0), 1.5)),
    ("register_load", "dst must be a register", lambda x: nisa.register_load(0, words(1))),
    (
        "register_store",
        "300 does not fit",
        lambda x: nisa.register_store(tile(1, 1, dtype=nl.uint8), register(300)),
    ),
    (
        "select_reduce",
        "reduce_res must be a float",
        lambda x: nisa.select_reduce(
            tile(6, 4),
            filled(6, 4, dtype=nl.uint8),
            loaded(x),
            0.0,
            tile(6, 1, dtype=nl.int32),
            RESET,
        ),
    ),
]


@pytest.mark.parametrize(("instruction", "problem", "call"), CALLS)
def test_a_call_is_refused(instruction: str, problem: str, call: Callable[[Any], Any]) -> None:
    def kernel(x) -> None:
        call(x)

    refused(instruction, problem, kernel, draw(6, 4))


def test_an_indirect_view_is_no_result() -> None:
    def kernel(x):
        return x.select(0, words(0))

    refused("kernel", "returns the indirect view", kernel, draw(6, 4))


def test_registers_are_stored() -> None:
    def kernel():
        found = tile(1, 1, dtype=nl.int32)
        first = register(7)
        second = nisa.register_alloc()
        nisa.register_move(second, first)
        nisa.register_store(found, second)
        return copied_out(found)

    assert run(kernel).tolist() == [[7]]


def test_tiles_are_made_of_others() -> None:
    def kernel(x, row):
        assert not nl.zeros((2, 2), dtype=nl.float32).is_indirect()
        total = nl.sum(nl.load(x), axis=1)
        result = nl.ndarray((6, 4), dtype=x.dtype, buffer=nl.shared_hbm)
        spread = nl.broadcast_to(nl.load(row), (6, 4))
        nisa.tensor_scalar(spread, spread, nl.add, total)
        nl.store(result, spread)
        return result

    x, row = draw(6, 4), draw(1, 4)
    np.testing.assert_allclose(run(kernel, x, row), row + x.sum(1, keepdims=True), rtol=1e-5)
