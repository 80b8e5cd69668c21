from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from noria.runtime.models.tensor_files import TensorFiles, TensorHeader


def test_headers_tell_shape_and_dtype_without_reading_data(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 3, dtype=torch.bfloat16)}, tmp_path / "a.safetensors")

    files = TensorFiles([tmp_path / "a.safetensors"])

    assert files.headers == {"a": TensorHeader((2, 3), "BF16")}
    assert list(files) == ["a"]
    assert "b" not in files
    with pytest.raises(KeyError):
        files["b"]


def test_a_file_that_is_no_safetensors_is_kept_as_damaged(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(b"not a header")

    files = TensorFiles([path])

    assert list(files.damaged) == [path]
    assert len(files) == 0


def test_reading_twice_gives_the_same_memory(tmp_path: Path) -> None:
    """Tensors are views of one mapping, not copies."""
    save_file({"a": torch.ones(1000)}, tmp_path / "a.safetensors")
    files = TensorFiles([tmp_path / "a.safetensors"])

    assert files["a"].data_ptr() == files["a"].data_ptr()
