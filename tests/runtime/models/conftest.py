from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from noria.runtime.models.architecture import Architecture
from noria.runtime.models.fetch import fetched_path
from noria.runtime.models.random_weights import RandomTensors

CONFIG: dict[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "torch_dtype": "float32",
}


@pytest.fixture
def tiny_config() -> dict[str, object]:
    """A small Llama in ``config.json`` keys."""
    return dict(CONFIG)


@pytest.fixture
def tiny_tensors(tiny_config: dict[str, object]) -> dict[str, Tensor]:
    """The tensors of that model."""
    return dict(RandomTensors(Architecture.from_config(tiny_config), seed=3))


WriteCheckpoint = Callable[..., Path]


@pytest.fixture
def write_checkpoint(tmp_path: Path) -> WriteCheckpoint:
    """Write a folder: ``write(config, tensors)`` in one file, ``shards=2`` in two by an index."""

    def write(
        config: Mapping[str, object], tensors: Mapping[str, Tensor], *, shards: int = 1
    ) -> Path:
        folder = tmp_path / "model"
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        if shards == 1:
            save_file(dict(tensors), folder / "model.safetensors")
            return folder
        weight_map: dict[str, str] = {}
        for shard in range(shards):
            part = {n: t for i, (n, t) in enumerate(tensors.items()) if i % shards == shard}
            name = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
            save_file(part, folder / name)
            weight_map |= dict.fromkeys(part, name)
        index = {"metadata": {}, "weight_map": weight_map}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return folder

    return write


@pytest.fixture
def write_tokenizer() -> Callable[..., None]:
    """Write a byte-level tokenizer with ``<s>`` 0, ``</s>`` 1 and bytes from 2 on."""

    def write(folder: Path, *, adds_bos: bool = True, **config: object) -> None:
        folder.mkdir(exist_ok=True)
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        vocab = {"<s>": 0, "</s>": 1} | {char: i + 2 for i, char in enumerate(alphabet)}
        backend: Any = Tokenizer(models.BPE(vocab, []))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(["<s>", "</s>"])
        if adds_bos:
            backend.post_processor = processors.TemplateProcessing(
                single="<s> $A", special_tokens=[("<s>", 0)]
            )
        backend.save(str(folder / "tokenizer.json"))
        values = {
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "</s>"},
        } | config
        (folder / "tokenizer_config.json").write_text(json.dumps(values))

    return write


@pytest.fixture
def smollm2_path() -> Path:
    """The fetched SmolLM2 file."""
    path = fetched_path("smollm2-135m")
    if path is None:
        pytest.skip("smollm2-135m is not in the cache; run: noria fetch smollm2-135m")
    return path
