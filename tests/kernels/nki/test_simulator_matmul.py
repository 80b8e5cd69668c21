"""The Tensor Engine: sizes, dtypes, banks, and accumulation onto what a matmul left."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from nki_rules import copied_out, draw, filled, loaded, nisa, nl, refused, run, tile

PSUM = nl.psum


def product(left: Any, right: Any) -> Any:
    found = tile(left.shape[1], right.shape[1], buffer=PSUM)
    nisa.nc_matmul(dst=found, stationary=loaded(left), moving=loaded(right))
    return copied_out(found)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16])
def test_the_stationary_operand_is_transposed(dtype: Any) -> None:
    left, right = draw(8, 3, dtype=dtype), draw(8, 5, seed=1, dtype=dtype)

    found = run(product, left, right)

    assert found.dtype == np.float32
    np.testing.assert_allclose(found, left.astype(float).T @ right.astype(float), atol=1e-5)


def accumulated(*flags: bool | None) -> Any:
    def kernel(left, right):
        found = tile(3, 5, buffer=PSUM)
        for flag in flags:
            nisa.nc_matmul(
                dst=found, stationary=loaded(left), moving=loaded(right), accumulate=flag
            )
        return copied_out(found)

    return kernel


@pytest.mark.parametrize(
    ("flags", "times"),
    [
        ((False,), 1),
        ((False, True), 2),
        ((None, None, None), 3),
        ((False, False), 1),
        ((None, True, False, True), 2),
    ],
)
def test_accumulation(flags: tuple[bool | None, ...], times: int) -> None:
    left, right = draw(8, 3), draw(8, 5, seed=1)

    found = run(accumulated(*flags), left, right)

    np.testing.assert_allclose(found, times * (left.T @ right), rtol=1e-5)


def test_nothing_accumulates_onto_unwritten_psum() -> None:
    refused(
        "nc_matmul", "onto 15 of 15 unwritten elements", accumulated(True), draw(8, 3), draw(8, 5)
    )


@pytest.mark.parametrize("flag", [None, True])
def test_nothing_accumulates_onto_half_written_psum(flag: bool | None) -> None:
    def kernel(left, right) -> None:
        found = tile(3, 5, buffer=PSUM)
        operands = (loaded(left), loaded(right))
        nisa.nc_matmul(dst=found[:, 0:2], stationary=operands[0], moving=operands[1][:, 0:2])
        nisa.nc_matmul(dst=found, stationary=operands[0], moving=operands[1], accumulate=flag)

    refused("nc_matmul", "onto 9 of 15 unwritten", kernel, draw(8, 3), draw(8, 5))


@pytest.mark.parametrize("flag", [None, True])
def test_before_trn3_only_what_a_matmul_wrote_is_accumulated_onto(flag: bool | None) -> None:
    def kernel(left, right):
        found = filled(3, 5, value=1, buffer=PSUM)
        nisa.nc_matmul(dst=found, stationary=loaded(left), moving=loaded(right), accumulate=flag)
        return copied_out(found)

    left, right = draw(8, 3), draw(8, 5, seed=1)
    np.testing.assert_allclose(
        run(kernel, left, right, target="trn3"), 1 + left.T @ right, rtol=1e-5
    )
    refused("nc_matmul", "what no matmul wrote", kernel, left, right)


@pytest.mark.parametrize(("target", "columns"), [("trn1", 512), ("trn2", 512), ("trn3", 4096)])
def test_moving_columns_are_limited(target: str, columns: int) -> None:
    run(product, draw(1, 1), draw(1, columns), target=target)
    if columns < 4096:
        problem = f"moving has {columns + 1} columns, at most {columns}"
        refused("nc_matmul", problem, product, draw(1, 1), draw(1, columns + 1), target=target)


def test_stationary_columns_are_limited() -> None:
    def kernel(left) -> None:
        nisa.nc_matmul(dst=tile(128, 1, buffer=PSUM), stationary=loaded(left), moving=filled(1, 1))

    refused("nc_matmul", "stationary has 129 columns", kernel, draw(1, 129))


def test_the_destination_stays_in_a_bank() -> None:
    def kernel(first: int) -> None:
        found = tile(2, 1024, buffer=PSUM)[:, first : first + 256]
        nisa.nc_matmul(dst=found, stationary=filled(4, 2), moving=filled(4, 256))

    run(kernel, 256)
    run(kernel, 512)
    refused("nc_matmul", "crosses a PSUM bank: bytes 1536 to 2556", kernel, 384)
    run(kernel, 384, target="trn3")


@pytest.mark.parametrize(
    ("dtypes", "target", "problem"),
    [
        ((nl.float32, nl.bfloat16, nl.float32), "trn2", "float32 does not mix"),
        ((nl.int8, nl.int8, nl.float32), "trn2", "must be floats"),
        ((nl.float8_e4m3fn, nl.bfloat16, nl.float32), "trn2", "needs trn3"),
        ((nl.float8_e4m3fn, nl.float8_e4m3, nl.float32), "trn3", "do not mix"),
        ((nl.bfloat16, nl.bfloat16, nl.bfloat16), "trn2", "dst must be float32"),
        ((nl.bfloat16, nl.bfloat16, nl.float16), "trn3", "dst must be float32"),
    ],
)
def test_dtypes_have_rules(dtypes: tuple[str, ...], target: str, problem: str) -> None:
    def kernel() -> None:
        left, right = (filled(4, 2, dtype=dtype) for dtype in dtypes[:2])
        dst = tile(2, 2, dtype=dtypes[2], buffer=PSUM)
        nisa.nc_matmul(dst=dst, stationary=left, moving=right)

    refused("nc_matmul", problem, kernel, target=target)


@pytest.mark.parametrize(
    ("dst", "left", "right", "problem"),
    [
        ((2, 3, nl.sbuf), (4, 2, nl.sbuf), (4, 3, nl.sbuf), "dst must be in psum"),
        ((2, 3, PSUM), (4, 2, PSUM), (4, 3, nl.sbuf), "stationary must be in sbuf"),
        ((2, 3, PSUM), (4, 2, nl.sbuf), (4, 3, PSUM), "moving must be in sbuf"),
        ((2, 3, PSUM), (4, 2, nl.sbuf), (5, 3, nl.sbuf), "contraction sizes differ"),
        ((3, 2, PSUM), (4, 2, nl.sbuf), (4, 3, nl.sbuf), "dst must be .2, 3."),
    ],
)
def test_operands_have_their_places(dst: Any, left: Any, right: Any, problem: str) -> None:
    def kernel() -> None:
        operands = [filled(*shape, buffer=buffer) for *shape, buffer in (left, right)]
        found = tile(dst[0], dst[1], buffer=dst[2])
        nisa.nc_matmul(dst=found, stationary=operands[0], moving=operands[1])

    refused("nc_matmul", problem, kernel)


@pytest.mark.parametrize(
    ("position", "size", "problem"),
    [
        ((0, 0), (), "go together"),
        ((0, 0), (16, 128), "two of 32, 64, 128"),
        ((0, 0), (32, 128), "exceeds tile_size"),
        ((32, 0), (64, 128), "no multiple"),
        ((128, 0), (64, 128), "within 128"),
    ],
)
def test_tiles_of_the_array_have_rules(position: Any, size: Any, problem: str) -> None:
    def kernel() -> None:
        nisa.nc_matmul(
            dst=tile(2, 3, buffer=PSUM),
            stationary=filled(40, 2),
            moving=filled(40, 3),
            tile_position=position,
            tile_size=size,
        )

    refused("nc_matmul", problem, kernel)


def test_tiles_of_the_array_change_no_result() -> None:
    def kernel(left, right):
        found = tile(3, 5, buffer=PSUM)
        operands = (loaded(left), loaded(right))
        nisa.nc_matmul(found, *operands, tile_position=(64, 0), tile_size=(64, 128))
        return copied_out(found)

    left, right = draw(8, 3), draw(8, 5, seed=1)
    np.testing.assert_array_equal(run(kernel, left, right), run(product, left, right))


def test_modes_that_are_not_simulated_are_refused() -> None:
    def kernel(**mode: Any) -> None:
        nisa.nc_matmul(tile(2, 2, buffer=PSUM), filled(2, 2), filled(2, 2), **mode)

    refused("nc_matmul", "not simulated", lambda: kernel(is_transpose=True))
    double = nisa.matmul_perf_mode.double_row
    refused("nc_matmul", "not simulated", lambda: kernel(perf_mode=double))


def turned(x: Any, **options: Any) -> Any:
    buffer = options.pop("buffer", PSUM)
    found = tile(x.shape[1], x.shape[0], dtype=x.dtype, buffer=buffer)
    nisa.nc_transpose(dst=found, data=loaded(x), **options)
    return copied_out(found)


def test_a_transposition_is_bit_exact() -> None:
    bits = np.array([[0x7FC1, 0xFF81, 0x8000], [0x0001, 0x7F80, 0x3F80]], np.uint16)

    found = run(turned, bits.view(ml_dtypes.bfloat16))

    np.testing.assert_array_equal(found.view(np.uint16), bits.T)


def test_trn1_does_not_transpose_nan() -> None:
    refused(
        "nc_transpose",
        "NaN or infinity",
        turned,
        np.full((2, 3), np.nan, np.float32),
        target="trn1",
    )


@pytest.mark.parametrize("size", [(32, 32), (5, 7)])
def test_the_vector_engine_transposes_within_sbuf(size: tuple[int, int]) -> None:
    def kernel(x):
        return turned(x, buffer=nl.sbuf)

    x = draw(*size)
    np.testing.assert_array_equal(run(kernel, x), x.T)


def test_transpositions_have_rules() -> None:
    def kernel(x: Any, **options: Any) -> Any:
        return lambda t: turned(t, **options), x

    vector, tensor = nisa.engine.vector, nisa.engine.tensor
    cases = (
        (*kernel(draw(33, 2), buffer=nl.sbuf), r"up to \[32, 32\]"),
        (*kernel(draw(33, 2), engine=vector), r"up to \[32, 32\]"),
        (*kernel(draw(2, 2), buffer=nl.sbuf, engine=tensor), "from sbuf to psum"),
        (*kernel(draw(2, 2), engine=nisa.engine.scalar), "must be tensor or vector"),
        (*kernel(draw(2, 2, dtype=ml_dtypes.float8_e4m3)), "does not transpose float8_e4m3"),
    )
    for body, x, problem in cases:
        refused("nc_transpose", problem, body, x)


def test_a_transposition_keeps_the_dtype_and_exchanges_sizes() -> None:
    def kernel(dtype: str, rows: int) -> None:
        nisa.nc_transpose(tile(rows, 2, dtype=dtype, buffer=PSUM), filled(2, 3))

    refused("nc_transpose", "must have one dtype", kernel, nl.bfloat16, 3)
    refused("nc_transpose", "dst must be .3, 2.", kernel, nl.float32, 4)
