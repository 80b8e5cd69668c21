"""Writing a safetensors file one tensor at a time, so that a large model never sits in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

HEADER_ALIGNMENT = 8


def write_float32(
    path: Path,
    shapes: Mapping[str, tuple[int, ...]],
    tensors: Iterable[tuple[str, NDArray[np.float32]]],
) -> None:
    """Write fp32 ``tensors``, which must come in the order and with the shapes of ``shapes``."""
    header = _header(shapes)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little"))
        file.write(header)
        for (name, values), expected in zip(tensors, shapes.items(), strict=True):
            assert (name, values.shape) == expected
            file.write(np.ascontiguousarray(values, dtype="<f4").data)


def _header(shapes: Mapping[str, tuple[int, ...]]) -> bytes:
    """Describe the tensors back to back; spaces align the data that follows."""
    entries: dict[str, object] = {}
    start = 0
    for name, shape in shapes.items():
        end = start + 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(entries).encode()
    return text + b" " * (-len(text) % HEADER_ALIGNMENT)
