"""Vector functions of the C++ kernels, compiled alone for each instruction set of this machine."""

import ctypes
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from noria.kernels.cpu import build

Floats = NDArray[np.float32]
HARNESS = """
#include "fp8.h"
extern "C" {
void tanh_of(const float* x, float* out, int64_t size) {
  for (int64_t i = 0; i < size; i += kWidth)
    store(out + i, hyperbolic_tangent(load(x + i, size - i)), size - i);
}
void fp8_of(const float* x, fp8* out, int64_t size) {
  for (int64_t i = 0; i < size; i += kWidth) store(out + i, load(x + i, size - i), size - i);
}
void floats_of(const fp8* x, float* out, int64_t size) { copy_row(x, size, out); }
void bf16_of(const fp8* x, bf16* out, int64_t size) { copy_row(x, size, out); }
}
"""
SETS = (build.GENERIC, build.AVX2, build.AVX512)
ISAS = {isa.name: isa for isa in SETS}


def is_runnable(isa: build.InstructionSet) -> bool:
    detected = build.detect_instruction_set()
    return len(isa.flags) <= len(detected.flags)


@pytest.fixture(scope="module", params=ISAS, ids=list(ISAS))
def functions(request, tmp_path_factory) -> ctypes.CDLL:
    isa, compiler = ISAS[request.param], build.find_compiler()
    if compiler is None or not is_runnable(isa):
        pytest.skip(f"this machine does not run {isa.name}, or has no compiler")
    folder: Path = tmp_path_factory.mktemp(isa.name)
    for name, text in build._sources().items():
        (folder / name).write_bytes(text)
    (folder / "harness.cc").write_text(HARNESS)
    command = [compiler, *build._FLAGS, *isa.flags, "-shared", str(folder / "harness.cc")]
    subprocess.run([*command, "-o", str(folder / "harness.so")], check=True)
    return ctypes.CDLL(str(folder / "harness.so"))


def call(function, x: np.ndarray, dtype: type) -> np.ndarray:
    out = np.empty(x.shape, dtype)
    x = np.ascontiguousarray(x)
    function(x.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), x.size)
    return out


def many_floats() -> Floats:
    """A sample of all sizes and signs, dense where tanh bends."""
    every = np.arange(0, 0x7F800000, 1013, dtype=np.uint32).view(np.float32)
    bend = np.linspace(0, 12, 500_001, dtype=np.float32)
    return np.concatenate([every, -every, bend, -bend])


def test_tanh_is_within_2_units_in_the_last_place_of_fp64(functions):
    x = many_floats()
    exact = np.tanh(x.astype(np.float64))

    got = call(functions.tanh_of, x, np.float32)

    unit = np.spacing(np.abs(exact).astype(np.float32)).astype(np.float64)
    assert float((np.abs(got - exact) / unit).max()) < 2
    assert float(np.abs(got).max()) == 1
    assert np.array_equal(np.signbit(got), np.signbit(x))


def test_tanh_of_the_ends_and_of_nan(functions):
    x = np.array([0.0, -0.0, np.inf, -np.inf, 9.1, 1e-45, 3e38, np.nan], dtype=np.float32)

    got = call(functions.tanh_of, x, np.float32)

    expected = np.array([0.0, -0.0, 1, -1, 1, 1e-45, 1, np.nan], dtype=np.float32)
    assert got[:7].tobytes() == expected[:7].tobytes()
    assert np.isnan(got[7])


def test_a_number_has_the_same_tanh_in_every_lane_and_tail(functions):
    x = np.random.default_rng(1).normal(scale=3, size=67).astype(np.float32)
    whole = call(functions.tanh_of, x, np.float32)

    for start in range(20):
        for size in (1, 3, 16, 47):
            part = call(functions.tanh_of, x[start : start + size], np.float32)
            assert part.tobytes() == whole[start : start + size].tobytes()


@pytest.mark.parametrize("size", [256, 131])
def test_all_fp8_codes_are_read_as_their_numbers(functions, size: int):
    codes = np.arange(256, dtype=np.uint8)[-size:]

    floats = call(functions.floats_of, codes, np.float32)
    halves = call(functions.bf16_of, codes, ml_dtypes.bfloat16).astype(np.float32)

    expected = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    is_nan = np.isnan(expected)
    for got in (floats, halves):
        assert np.array_equal(np.isnan(got), is_nan)
        assert got[~is_nan].tobytes() == expected[~is_nan].tobytes()


def test_fp8_codes_are_those_of_another_library(functions):
    """Every bit pattern's neighbourhood: subnormals, ties, what saturates."""
    x = many_floats()
    codes = np.arange(0, 0x7F, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = (codes[1:] + codes[:-1]) / 2
    edges = np.concatenate([codes, ties, np.float32([448, 464, 465, 1e30, np.inf])])
    near = [edges, np.nextafter(edges, np.float32(0)), np.nextafter(edges, np.float32(np.inf))]
    x = np.concatenate([x, *near, *(-part for part in near)])

    got = call(functions.fp8_of, x, np.uint8)

    expected = np.clip(x, -448, 448).astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    assert got.tobytes() == expected.tobytes()
