from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from noria.runtime.models.families import read_architecture
from noria.runtime.models.fetch import fetched_path
from noria.runtime.models.gguf_file import GgufFile
from noria.runtime.models.gguf_tokenizer import build_tokenizer
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
    return dict(RandomTensors(read_architecture(tiny_config), seed=3))


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


@pytest.fixture(scope="session")
def smollm2_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer files that the fetched SmolLM2 file is converted to."""
    path = fetched_path("smollm2-135m")
    if path is None:
        pytest.skip("smollm2-135m is not in the cache; run: noria fetch smollm2-135m")
    folder: Path = tmp_path_factory.mktemp("smollm2")
    built = build_tokenizer(GgufFile(path).metadata)
    built.backend.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | dict(built.config)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    prefix = ""
    if name.startswith("model.layers."):
        _, _, layer, name = name.split(".", 3)
        prefix = f"blk.{layer}."
    stem, _, kind = name.rpartition(".")
    return f"{prefix}{GGUF_NAMES[stem]}.{kind}"


def gguf_rows(name: str, tensor: Tensor, config: Mapping[str, Any]) -> NDArray[np.float32]:
    """Query and key rows in pairs, written as the converter of llama.cpp writes them."""
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads is None:
        return tensor.numpy()
    halves = tensor.reshape(num_heads, 2, tensor.shape[0] // num_heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape).numpy()


def gguf_metadata(config: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of a model, without a tokenizer."""
    return {
        "general.architecture": "llama",
        "llama.block_count": config["num_hidden_layers"],
        "llama.context_length": config.get("max_position_embeddings", 2048),
        "llama.embedding_length": config["hidden_size"],
        "llama.feed_forward_length": config["intermediate_size"],
        "llama.attention.head_count": config["num_attention_heads"],
        "llama.attention.head_count_kv": config["num_key_value_heads"],
        "llama.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "llama.rope.freq_base": float(config.get("rope_theta", 10000.0)),
        "tokenizer.ggml.eos_token_id": config["eos_token_id"],
    }


def add_metadata(writer: Any, metadata: Mapping[str, Any]) -> None:
    """Write values under the type that their Python type stands for."""
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        if key != "general.architecture":
            adders[type(value)](key, value)


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a GGUF file from ``config.json`` keys and Hugging Face tensors."""

    def write(
        config: Mapping[str, Any],
        tensors: Mapping[str, Tensor],
        *,
        metadata: Mapping[str, Any] | None = None,
        quantized: tuple[str, ...] = (),
        rope_divisors: NDArray[np.float32] | None = None,
        extra: Mapping[str, NDArray[Any]] | None = None,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        values = gguf_metadata(config) | dict(metadata or {})
        writer: Any = gguf.GGUFWriter(path, values["general.architecture"])
        add_metadata(writer, values)
        for name, tensor in tensors.items():
            rows = gguf_rows(name, tensor, config)
            kind = gguf.GGMLQuantizationType.Q8_0 if name in quantized else None
            stored = gguf.quants.quantize(rows, kind) if kind is not None else rows
            writer.add_tensor(gguf_name(name), stored, raw_dtype=kind)
        if rope_divisors is not None:
            writer.add_tensor("rope_freqs.weight", rope_divisors)
        for name, array in (extra or {}).items():
            writer.add_tensor(name, array.astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
