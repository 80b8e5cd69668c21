from __future__ import annotations

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models import gguf_conversion
from noria.runtime.models.checkpoint import open_checkpoint
from noria.runtime.models.converted import convert_gguf, file_sha256

Tensors = dict[str, Tensor]
Config = dict[str, object]
WriteGguf = Callable[..., Path]


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Every file that is really converted."""
    calls: list[Path] = []
    write = gguf_conversion.write_checkpoint

    def counted(path: Path, folder: Path) -> str | None:
        calls.append(path)
        return write(path, folder)

    monkeypatch.setattr(gguf_conversion, "write_checkpoint", counted)
    return calls


def test_a_converted_file_is_a_checkpoint_of_the_same_tensors(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    """K13: equal to the safetensors twin."""
    path = write_gguf(tiny_config, tiny_tensors)

    converted = convert_gguf(path, cache=tmp_path / "cache")

    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert converted.folder == tmp_path / "cache" / "converted" / f"{digest}-v1"
    read = open_checkpoint(converted.folder).tensors
    assert set(read) == set(tiny_tensors)
    assert all(torch.equal(read[name], tensor) for name, tensor in tiny_tensors.items())
    assert converted.tokenizer_problem is not None
    assert "tokenizer None" in converted.tokenizer_problem


def test_a_file_is_converted_and_hashed_once(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: WriteGguf,
    tmp_path: Path,
    conversions: list[Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)
    first = convert_gguf(path, cache=tmp_path / "cache")

    monkeypatch.setattr("noria.runtime.models.converted.file_sha256", None)
    second = convert_gguf(path, cache=tmp_path / "cache")

    assert first == second
    assert len(conversions) == 1


def test_a_changed_file_is_another_model(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    name = "model.norm.weight"
    first = convert_gguf(write_gguf(tiny_config, tiny_tensors), cache=tmp_path / "cache")
    changed = tiny_tensors | {name: tiny_tensors[name] + 1}
    second = convert_gguf(write_gguf(tiny_config, changed), cache=tmp_path / "cache")

    assert first.folder != second.folder
    for folder, tensors in ((first.folder, tiny_tensors), (second.folder, changed)):
        assert torch.equal(open_checkpoint(folder).tensors[name], tensors[name])


def test_a_copy_of_the_file_is_the_same_model(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: WriteGguf,
    tmp_path: Path,
    conversions: list[Path],
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(path.read_bytes())

    folders = {convert_gguf(source, cache=tmp_path / "cache").folder for source in (path, copy)}

    assert len(folders) == 1
    assert len(conversions) == 1


@pytest.mark.parametrize("damage", ["truncate", "delete", "no record"])
def test_a_damaged_conversion_is_made_again(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: WriteGguf,
    tmp_path: Path,
    conversions: list[Path],
    damage: str,
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)
    folder = convert_gguf(path, cache=tmp_path / "cache").folder
    if damage == "truncate":
        (folder / "model.safetensors").write_bytes(b"half")
    else:
        (folder / ("config.json" if damage == "delete" else "converted.json")).unlink()

    again = convert_gguf(path, cache=tmp_path / "cache").folder

    assert again == folder
    assert len(open_checkpoint(again).tensors) == len(tiny_tensors)
    assert len(conversions) == 2


def test_a_file_that_does_not_fit_leaves_nothing_behind(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    """K01: the same check as of any checkpoint, in the file's own name."""
    del tiny_tensors["model.layers.1.mlp.up_proj.weight"]
    path = write_gguf(tiny_config, tiny_tensors)

    with pytest.raises(ModelError, match="1 of 21 tensors missing") as caught:
        convert_gguf(path, cache=tmp_path / "cache")

    assert str(caught.value).startswith(f"{path}: 1 of 21")
    left = [entry.name for entry in (tmp_path / "cache" / "converted").iterdir()]
    assert [name for name in left if not name.endswith(".lock")] == ["hashes"]


def test_two_that_start_at_once_convert_once(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: WriteGguf,
    tmp_path: Path,
    conversions: list[Path],
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(convert_gguf, path, cache=tmp_path / "cache") for _ in range(4)]

    assert len({job.result().folder for job in jobs}) == 1
    assert len(conversions) == 1


def test_a_cache_that_cannot_be_written_is_named(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelError, match=r"cannot be converted into .*XDG_CACHE_HOME"):
        convert_gguf(write_gguf(tiny_config, tiny_tensors), cache=tmp_path / "file")


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc" * 100000)

    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc" * 100000).hexdigest()
