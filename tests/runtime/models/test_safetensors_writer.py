from __future__ import annotations

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from noria.runtime.models.safetensors_writer import write_float32


def test_the_library_reads_what_was_written(tmp_path: Path) -> None:
    arrays = {
        "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
        "transposed": np.arange(6, dtype=np.float32).reshape(2, 3).T,
        "vector": np.array([1e-30], dtype=np.float32),
    }
    shapes = {name: array.shape for name, array in arrays.items()}

    write_float32(tmp_path / "a.safetensors", shapes, arrays.items())

    read = load_file(tmp_path / "a.safetensors")
    assert set(read) == set(arrays)
    assert all(np.array_equal(read[name], array) for name, array in arrays.items())


def test_data_starts_at_a_multiple_of_eight(tmp_path: Path) -> None:
    """So that mapped tensors are aligned."""
    for size in range(1, 9):
        name = "n" * size
        write_float32(tmp_path / "a", {name: (1,)}, [(name, np.zeros(1, dtype=np.float32))])

        assert int.from_bytes((tmp_path / "a").read_bytes()[:8], "little") % 8 == 0
