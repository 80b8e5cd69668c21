"""Registers, and loops whose bounds exist only at run time."""

from __future__ import annotations

import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile


def count(limit):
    register = nisa.register_alloc()
    nisa.register_load(register, loaded(limit))
    total = filled(1, 1, dtype=nl.int32)
    one = filled(1, 1, value=1, dtype=nl.int32)
    return register, total, one


def test_a_loop_runs_as_often_as_a_register_says() -> None:
    def kernel(limit):
        register, total, one = count(limit)
        nl.fori_loop(0, register, lambda i: nisa.tensor_tensor(total, total, one, nl.add))
        return copied_out(total)

    for limit in (0, 1, 5):
        assert run(kernel, np.array([[limit]], np.int32)).item() == limit


def test_a_loop_counter_is_a_run_time_index() -> None:
    def kernel(x, limit):
        register, *_ = count(limit)
        result = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
        nisa.dma_copy(dst=result, src=filled(6, 4))

        def body(i) -> None:
            row = tile(1, 4)
            nisa.dma_copy(dst=row, src=x.ap([[4, 1], [1, 4]], scalar_offset=i))
            nisa.dma_copy(dst=result.ap([[4, 1], [1, 4]], scalar_offset=i), src=row)

        nl.fori_loop(1, register, body, step=2)
        return result

    x = draw(6, 4)
    found = run(kernel, x, np.array([[5]], np.int32))
    np.testing.assert_array_equal(found[[1, 3]], x[[1, 3]])
    assert not found[[0, 2, 4, 5]].any()


def test_a_loop_runs_until_a_register_is_zero() -> None:
    def kernel(limit):
        register, total, one = count(limit)
        left = loaded(limit)

        def body(r):
            nisa.tensor_tensor(total, total, one, nl.add)
            nisa.tensor_tensor(left, left, one, nl.subtract)
            nisa.register_load(r, left)
            return r

        nl.while_loop(register, body)
        return copied_out(total)

    for limit in (0, 3):
        assert run(kernel, np.array([[limit]], np.int32)).item() == limit


def test_registers_have_rules() -> None:
    def python_value() -> None:
        range(nisa.register_alloc(3))

    with pytest.raises(TypeError, match="no integer value"):
        run(python_value)
    refused(
        "fori_loop", "uninitialised register", lambda: nl.fori_loop(0, nisa.register_alloc(), print)
    )
    refused("register_alloc", "an integer or None", lambda: nisa.register_alloc(1.0))
    refused("register_alloc", "32-bit register", lambda: nisa.register_alloc(2**32))
    refused(
        "register_load",
        "one integer",
        lambda: nisa.register_load(nisa.register_alloc(), filled(1, 1)),
    )
    refused("dynamic_range", "positive integer constant", lambda: nl.dynamic_range(0, 4, 0))

    def writes(i) -> None:
        nisa.register_move(i, 0)

    refused("register_move", "cannot be written", lambda: nl.fori_loop(0, 1, writes))
