from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models.checkpoint import open_checkpoint
from noria.runtime.models.json_files import read_json

Write = Callable[..., Path]
Tensors = dict[str, Tensor]
Config = dict[str, object]
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SECOND = "model-00002-of-00002.safetensors"


def refusal(folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        open_checkpoint(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    return message


@pytest.mark.parametrize("shards", [1, 2])
def test_every_tensor_comes_out_as_it_was_written(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write, shards: int
) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tiny_config, tiny_tensors, shards=shards))

    assert set(checkpoint.tensors) == set(tiny_tensors)
    assert len(checkpoint.tensors) == 2 * 9 + 3
    for name, tensor in tiny_tensors.items():
        assert torch.equal(checkpoint.tensors[name], tensor)
    assert "model.layers.0.mlp.up_proj.bias" not in checkpoint.tensors


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_any_float_dtype_is_read_as_it_is(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write, dtype: torch.dtype
) -> None:
    tensors = {name: tensor.to(dtype) for name, tensor in tiny_tensors.items()}

    checkpoint = open_checkpoint(write_checkpoint(tiny_config, tensors))

    assert checkpoint.tensors[EMBEDDING].dtype == dtype
    assert torch.equal(checkpoint.tensors[EMBEDDING], tensors[EMBEDDING])


def test_a_missing_shard_is_named_with_the_number_of_missing_tensors(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K01: every parameter is loaded exactly once or the error says which are not."""
    folder = write_checkpoint(tiny_config, tiny_tensors, shards=2)
    (folder / SECOND).unlink()

    message = refusal(folder)

    assert f"1 of 2 weight files missing ({SECOND})" in message
    assert "10 of 21 tensors missing (" in message
    assert message.count("weight") == 4
    assert message.endswith(", ...)")


def test_a_truncated_shard_is_named(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K01."""
    folder = write_checkpoint(tiny_config, tiny_tensors, shards=2)
    content = (folder / SECOND).read_bytes()
    (folder / SECOND).write_bytes(content[:-100])

    message = refusal(folder)

    assert f"1 weight files damaged ({SECOND}: " in message
    assert "10 of 21 tensors missing" in message


def test_integer_tensors_are_refused_by_name(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K01: a wrong dtype in a shard."""
    tiny_tensors[HEAD] = torch.zeros(61, 32, dtype=torch.int32)

    message = refusal(write_checkpoint(tiny_config, tiny_tensors, shards=2))

    assert (
        "1 tensors of no supported dtype (F64, F32, F16, BF16) (lm_head.weight is I32)" in message
    )


def test_a_tensor_in_two_shards_is_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K01: exactly once."""
    folder = write_checkpoint(tiny_config, tiny_tensors, shards=2)
    save_file(load_file(folder / SECOND) | {EMBEDDING: tiny_tensors[EMBEDDING]}, folder / SECOND)

    assert f"1 tensors in more than one file ({EMBEDDING})" in refusal(folder)


def test_a_misshapen_tensor_is_named_with_both_shapes(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    tiny_tensors[HEAD] = torch.zeros(64, 32)

    message = refusal(write_checkpoint(tiny_config, tiny_tensors))

    assert f"1 tensors misshapen ({HEAD} is [64, 32], expected [61, 32])" in message


def test_a_bias_that_the_config_does_not_use_is_an_error(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K10."""
    name = "model.layers.0.self_attn.q_proj.bias"
    tiny_tensors[name] = torch.zeros(32)

    message = refusal(write_checkpoint(tiny_config, tiny_tensors))

    assert message.endswith(f"1 tensors that the model does not use ({name})")


def test_biases_that_the_config_asks_for_must_be_there(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K10: a Llama config with attention_bias true."""
    message = refusal(write_checkpoint(tiny_config | {"attention_bias": True}, tiny_tensors))

    assert "8 of 29 tensors missing (model.layers.0.self_attn.q_proj.bias, " in message


def test_rotary_buffers_of_old_checkpoints_are_skipped(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    tensors = tiny_tensors | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}

    checkpoint = open_checkpoint(write_checkpoint(tiny_config, tensors))

    assert checkpoint.architecture.num_layers == 2


@pytest.mark.parametrize("has_head", [False, True])
def test_a_tied_model_loads_with_and_without_an_equal_head(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write, has_head: bool
) -> None:
    """K03."""
    del tiny_tensors[HEAD]
    if has_head:
        tiny_tensors[HEAD] = tiny_tensors[EMBEDDING].clone()

    folder = write_checkpoint(tiny_config | {"tie_word_embeddings": True}, tiny_tensors)

    assert open_checkpoint(folder).architecture.tie_word_embeddings


def test_a_tied_head_may_be_equal_in_another_dtype(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K03."""
    tiny_tensors[EMBEDDING] = tiny_tensors[EMBEDDING].bfloat16()
    tiny_tensors[HEAD] = tiny_tensors[EMBEDDING].float()

    folder = write_checkpoint(tiny_config | {"tie_word_embeddings": True}, tiny_tensors)

    assert open_checkpoint(folder).architecture.tie_word_embeddings


def test_a_tied_model_with_another_head_is_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K03: neither tensor is dropped silently."""
    folder = write_checkpoint(tiny_config | {"tie_word_embeddings": True}, tiny_tensors)

    message = refusal(folder)

    assert f"{HEAD} differs from {EMBEDDING}" in message
    assert "set it to false in config.json" in message


def test_an_untied_model_without_a_head_is_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_checkpoint: Write
) -> None:
    """K03: the head is never left random."""
    del tiny_tensors[HEAD]

    assert "1 of 21 tensors missing (lm_head.weight)" in refusal(
        write_checkpoint(tiny_config, tiny_tensors)
    )


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("pytorch_model.bin", "pytorch_model.bin is a pickle.*convert the model to safetensors"),
        ("tiny.gguf", "to load tiny.gguf, give the path of that file"),
        ("README.md", "neither model.safetensors nor model.safetensors.index.json is there"),
    ],
)
def test_a_folder_without_safetensors_says_what_to_do(
    tiny_config: Config, tmp_path: Path, name: str, shown: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / name).write_bytes(b"")

    assert re.search(shown, refusal(tmp_path))


@pytest.mark.parametrize(
    ("index", "shown"),
    [
        ({}, "weight_map must map tensor names to files"),
        ({"weight_map": {"a": "../model.safetensors"}}, "'../model.safetensors'"),
        ({"weight_map": {"a": 3}}, "names 3"),
    ],
)
def test_an_index_names_files_of_its_folder(
    tiny_config: Config, tmp_path: Path, index: Config, shown: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(tiny_config))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))

    assert shown in refusal(tmp_path)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (None, "no such file"),
        (b"{", "not readable as JSON"),
        (b"[" * 100_000, "not readable as JSON"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not readable as JSON"),
        (b"[1]", "a JSON object, not list"),
        (b'{"a": "caf\xe9"}', "byte 10 is not UTF-8; must be UTF-8 text"),
    ],
    ids=["missing", "open", "deep", "digits", "list", "Latin-1"],
)
def test_a_config_file_that_is_no_object_is_named(
    tmp_path: Path, content: bytes | None, shown: str
) -> None:
    path = tmp_path / "config.json"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(ModelError, match=shown) as caught:
        read_json(path)

    assert str(path) in str(caught.value)
