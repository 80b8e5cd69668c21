"""NKI dtypes, which are strings, and the conversions that the engines do between them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .errors import fail

Array = NDArray[Any]

NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    "int8": np.dtype(np.int8),
    "int16": np.dtype(np.int16),
    "int32": np.dtype(np.int32),
    "uint8": np.dtype(np.uint8),
    "uint16": np.dtype(np.uint16),
    "uint32": np.dtype(np.uint32),
    "float16": np.dtype(np.float16),
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3": np.dtype(ml_dtypes.float8_e4m3),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
}
NOT_SIMULATED = (
    "tfloat32",
    "float8_e8m0fnu",
    "float8_e5m2_x4",
    "float8_e4m3fn_x4",
    "float4_e2m1fn_x4",
)
INTEGERS = frozenset({"bool", "int8", "int16", "int32", "uint8", "uint16", "uint32"})
WORDS = frozenset({"int32", "uint32"})  # integers that GpSimd computes exactly
FP8 = frozenset({"float8_e4m3", "float8_e4m3fn", "float8_e5m2"})
FLOATS = frozenset(NUMPY_DTYPES) - INTEGERS

_NAMES = {dtype: name for name, dtype in NUMPY_DTYPES.items()}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the numpy dtype that stores an NKI dtype.

    Raises:
        SimulationError: it is no NKI dtype, or one that the simulator does not have.
    """
    found = NUMPY_DTYPES.get(dtype) if isinstance(dtype, str) else None
    if found is None:
        known = isinstance(dtype, str) and dtype in NOT_SIMULATED
        fail(f"dtype {dtype!r} is not {'simulated' if known else 'an NKI dtype (nl.float32, ...)'}")
    return found


def nki_dtype(dtype: np.dtype[Any]) -> str:
    """Return the NKI dtype of a numpy array's dtype.

    Raises:
        SimulationError: NKI has no such dtype (float64, int64 and the like).
    """
    if dtype not in _NAMES:
        fail(f"numpy dtype {dtype} has no NKI counterpart")
    return _NAMES[dtype]


def bits(array: Array) -> Array:
    """Return an array's bit patterns as unsigned integers, without a copy."""
    return array.view(_UNSIGNED[array.dtype.itemsize])


def to_float32(array: Array) -> NDArray[np.float32]:
    """Widen to the fp32 that every engine computes in (int32 beyond 2**24 loses bits there)."""
    return array.astype(np.float32, copy=False)


def from_float32(values: NDArray[np.float32], dtype: str) -> Array:
    """Narrow fp32 results to a dtype as an engine's output stage does.

    Floats round to nearest even. Integers round to nearest even and saturate; NaN becomes 0.
    """
    target = numpy_dtype(dtype)
    if dtype == "bool":
        return np.asarray(values != 0)
    if dtype not in INTEGERS:
        with np.errstate(over="ignore", invalid="ignore"):
            found: Array = values.astype(target, copy=False)
            return found
    limits = np.iinfo(target)
    exact = np.nan_to_num(np.rint(values.astype(np.float64)), nan=0.0)
    return np.asarray(np.clip(exact, limits.min, limits.max)).astype(target)


def convert(values: Array, dtype: str) -> Array:
    """Convert stored values to another dtype: bit-exact when it is the same one, else by fp32."""
    if values.dtype == numpy_dtype(dtype):
        return values
    return from_float32(to_float32(values), dtype)
