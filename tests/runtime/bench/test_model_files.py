"""The files of a model, and how a GGUF file stores its weights."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from noria.runtime.bench.model_files import ModelFiles, gguf_stored, model_files
from noria.runtime.bench.roofline import Stored


def write_gguf(
    path: Path, kind: gguf.LlamaFileType, quantization: gguf.GGMLQuantizationType
) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_file_type(kind)
    weights = np.ones((4, 64), np.float32)
    packed = gguf.quants.quantize(weights, quantization)
    writer.add_tensor("a.weight", packed, raw_dtype=quantization)
    writer.add_tensor("b.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "quantization", "stored"),
    [
        (
            gguf.LlamaFileType.MOSTLY_Q4_1,
            gguf.GGMLQuantizationType.Q4_1,
            Stored("q4_1", (256 * 20 / 32 + 64 * 4) / 320),
        ),
        (
            gguf.LlamaFileType.MOSTLY_F16,
            gguf.GGMLQuantizationType.F16,
            Stored("float16", (256 * 2 + 64 * 4) / 320),
        ),
    ],
    ids=["q4_1", "f16"],
)
def test_a_gguf_file_tells_its_format_and_mean_bytes_per_weight(
    tmp_path: Path,
    kind: gguf.LlamaFileType,
    quantization: gguf.GGMLQuantizationType,
    stored: Stored,
) -> None:
    write_gguf(tmp_path / "m.gguf", kind, quantization)

    assert gguf_stored(tmp_path / "m.gguf") == stored


def test_a_random_model_has_no_files_and_a_folder_is_itself(tmp_path: Path) -> None:
    assert model_files({"model_type": "llama"}) == ModelFiles()
    assert model_files(str(tmp_path)) == ModelFiles(tmp_path)
