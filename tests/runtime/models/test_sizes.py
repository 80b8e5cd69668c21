"""The architecture of a model is read without its weights, and is the one that is loaded."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models import hub, locations
from noria.runtime.models.converted import convert_gguf
from noria.runtime.models.sizes import read_sizes_of
from noria.runtime.models.sources import open_model

INLINE = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
Write = Callable[..., Path]


def test_a_written_architecture_is_read() -> None:
    assert read_sizes_of(INLINE) == open_model(INLINE).architecture


def test_a_folder_needs_no_weights(
    tiny_config: dict[str, object], tiny_tensors: dict[str, object], write_checkpoint: Write
) -> None:
    folder = write_checkpoint(tiny_config, tiny_tensors)
    whole = open_model(folder).architecture

    (folder / "model.safetensors").unlink()

    assert read_sizes_of(str(folder)) == whole


def test_a_gguf_file_is_not_converted(
    tiny_config: dict[str, object],
    tiny_tensors: dict[str, object],
    write_gguf: Write,
    tmp_path: Path,
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)

    found = read_sizes_of(path, cache=tmp_path / "nothing")

    assert not (tmp_path / "nothing").exists()
    assert found == read_sizes_of(convert_gguf(path, cache=tmp_path / "cache").folder)


def test_of_a_hub_id_only_the_configuration_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tiny_config: dict[str, object]
) -> None:
    asked = []

    def folder(name: str, *, patterns: tuple[str, ...]) -> Path:
        asked.append((name, patterns))
        return tmp_path

    monkeypatch.setattr(locations, "hub_folder", folder)
    with pytest.raises(ModelError, match=r"config\.json: no such file"):
        read_sizes_of("someone/something")

    assert asked == [("someone/something", ("config.json",))]
    assert "model*.safetensors" in hub.MODEL_PATTERNS


@pytest.mark.parametrize("name", ["nothing-here", "no/such/thing/at/all"])
def test_what_is_no_model_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_sizes_of(name)

    assert repr(name) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_planning_needs_no_torch() -> None:
    code = "import sys, noria.runtime.plan_problem; sys.exit('torch' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
