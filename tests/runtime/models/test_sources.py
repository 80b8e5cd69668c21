from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models.locations import resolve_model
from noria.runtime.models.sources import open_model

Tensors = dict[str, Tensor]
Config = dict[str, object]
Write = Callable[..., Path]


def test_a_folder_opens_with_its_tokenizer_and_template(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_checkpoint: Write,
    write_tokenizer: Callable[..., None],
) -> None:
    folder = write_checkpoint(tiny_config, tiny_tensors)
    write_tokenizer(folder, chat_template="{{ messages[0].content }}")

    model = open_model(str(folder))

    assert model.architecture.hidden_size == 32
    assert torch.equal(model.tensors["lm_head.weight"], tiny_tensors["lm_head.weight"])
    assert model.tokenizer is not None
    assert model.tokenizer.chat_template is not None


def test_a_folder_without_tokenizer_has_none(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    model = open_model(write_checkpoint(tiny_config, tiny_tensors))

    assert model.tokenizer is None


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"eos_token_id": [5, 2]}, (2, 5, 1)),
        ({"eos_token_id": 7}, (2, 7, 1)),
        ({}, (2, 1)),
        (None, (2, 1)),
    ],
)
def test_end_tokens_are_the_union_of_all_files(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_checkpoint: Write,
    write_tokenizer: Callable[..., None],
    generation: Config | None,
    expected: tuple[int, ...],
) -> None:
    """J07: config.json, generation_config.json and the tokenizer."""
    folder = write_checkpoint(tiny_config, tiny_tensors)
    write_tokenizer(folder)
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))

    assert open_model(folder).eos_token_ids == expected


def test_a_given_tokenizer_replaces_the_models_own(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_checkpoint: Write,
    write_tokenizer: Callable[..., None],
    tmp_path: Path,
) -> None:
    folder = write_checkpoint(tiny_config, tiny_tensors)
    write_tokenizer(tmp_path / "other", adds_bos=False)

    model = open_model(folder, tokenizer=str(tmp_path / "other"))

    assert model.tokenizer is not None
    assert model.tokenizer.encode("") == []


@pytest.mark.parametrize(
    ("name", "shown"),
    [("nowhere", "is no folder and no hub id"), (".", "has no tokenizer.json")],
)
def test_a_tokenizer_that_is_not_there_is_named(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_checkpoint: Write,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    shown: str,
) -> None:
    folder = write_checkpoint(tiny_config, tiny_tensors)
    monkeypatch.chdir(folder)

    with pytest.raises(ModelError, match=f"tokenizer '{name}' {shown}"):
        open_model(folder, tokenizer=name)


def test_a_gguf_file_opens_through_the_cache(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: Write, tmp_path: Path
) -> None:
    """K13: without a supported tokenizer one must be given."""
    path = write_gguf(tiny_config, tiny_tensors)

    with pytest.raises(ModelError, match=f"{path}: tokenizer None .*give `tokenizer:`"):
        open_model(str(path), cache=tmp_path / "cache")


def test_a_gguf_file_opens_with_a_given_tokenizer(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: Write,
    write_tokenizer: Callable[..., None],
    tmp_path: Path,
) -> None:
    write_tokenizer(tmp_path / "other")
    path, lines = write_gguf(tiny_config, tiny_tensors), list[str]()

    for _ in range(2):
        model = open_model(
            path, tokenizer=tmp_path / "other", cache=tmp_path / "cache", progress=lines.append
        )

    assert [line.split(" into ")[0] for line in lines] == ["tiny.gguf: converting once"]
    assert torch.equal(model.tensors["model.norm.weight"], tiny_tensors["model.norm.weight"])
    assert model.eos_token_ids == (2, 1)


def test_an_inline_model_has_random_weights_and_byte_tokens(tiny_config: Config) -> None:
    del tiny_config["torch_dtype"]
    large = tiny_config | {"vocab_size": 300, "seed": 4}

    model = open_model(large)

    assert model.tokenizer is not None
    assert model.tokenizer.decode(model.tokenizer.encode("hé")) == "hé"
    assert model.eos_token_ids == (2,)
    assert model.tensors["lm_head.weight"].shape == (300, 32)
    assert open_model(tiny_config).tokenizer is None


def test_a_known_name_that_is_not_fetched_says_how(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="'smollm2-135m' is not fetched yet; run: noria fetch"):
        open_model("smollm2-135m", cache=tmp_path)


def test_an_unknown_name_lists_what_was_tried(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        open_model("smollm2-136m", cache=tmp_path)

    assert str(caught.value) == (
        "model 'smollm2-136m' is no folder, no .gguf file, no known name (smollm2-135m) and no hub "
        "id (organisation/name); did you mean 'smollm2-135m'?"
    )


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    """K13: one line, no parse error."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"")

    with pytest.raises(ModelError, match=r"neither a \.gguf file nor a folder"):
        open_model(path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("~no-such-user/model", "no home folder is known for that user"),
        ("x" * 300, "File name too long"),
        ("x/" * 3000, "File name too long"),
        ("a\0b", "is no folder, no .gguf file"),
    ],
    ids=["user", "name", "path", "null"],
)
def test_a_path_that_no_file_can_have_is_refused(name: str, problem: str) -> None:
    with pytest.raises(ModelError, match=problem) as caught:
        open_model(name)
    with pytest.raises(ModelError):
        open_model("nowhere", tokenizer=name)

    assert str(caught.value).startswith(f"model {name!r}")


@pytest.mark.parametrize("method", ["is_dir", "is_file", "read_text", "iterdir"])
def test_a_folder_that_must_not_be_read_is_named(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    monkeypatch.setattr(Path, method, refuse)

    with pytest.raises(ModelError, match=f"{tmp_path}.*Permission denied"):
        open_model(tmp_path)


def test_a_tokenizer_folder_that_must_not_be_read_is_named(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    del tiny_config["torch_dtype"]
    monkeypatch.setattr(Path, "is_file", refuse)

    with pytest.raises(ModelError, match=f"tokenizer '{tmp_path}': Permission denied"):
        open_model(tiny_config, tokenizer=tmp_path)


def test_a_hub_id_is_downloaded(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_checkpoint: Write,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = write_checkpoint(tiny_config, tiny_tensors)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(folder))

    assert open_model("org/name").architecture.hidden_size == 32


def test_a_path_that_looks_like_a_hub_id_says_both(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*args: object, **kwargs: object) -> str:
        raise OSError("offline")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)

    with pytest.raises(ModelError) as caught:
        resolve_model("models/tiny")
    assert str(caught.value) == (
        "model 'models/tiny' is no folder or file here; models/tiny: cannot download from the "
        "Hugging Face hub: offline"
    )


def test_the_real_model_opens_by_name(smollm2_path: Path) -> None:
    """The numbers are those of other engines on the same file."""
    model = open_model("smollm2-135m")

    assert model.tokenizer is not None
    assert model.eos_token_ids == (2,)
    assert sum(tensor.numel() for tensor in model.tensors.values()) == 134_515_008
    question = {"role": "user", "content": "What is gravity? Answer in one sentence."}
    ids = model.tokenizer.encode_chat([question])
    assert len(ids) == 39
    text = model.tokenizer.render_chat([question])
    assert text.startswith("<|im_start|>system\nYou are a helpful AI assistant named SmolLM")
    assert text.endswith("<|im_end|>\n<|im_start|>assistant\n")
