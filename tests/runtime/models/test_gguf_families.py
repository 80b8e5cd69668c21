"""K13: GGUF files of every architecture read as their safetensors twins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models.families import read_architecture
from noria.runtime.models.gguf_conversion import write_checkpoint
from noria.runtime.models.gguf_file import GgufFile
from noria.runtime.models.random_weights import RandomTensors

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "head_dim": 8,
    "eos_token_id": 2,
    "rope_theta": 10000.0,
}
EXPERTS = {"num_local_experts": 3, "num_experts_per_tok": 2, "sliding_window": None}
GEMMA: dict[str, Any] = {
    "sliding_window": 5,
    "query_pre_attn_scalar": 8,
    "tie_word_embeddings": True,
    "attn_logit_softcapping": 2.0,
    "final_logit_softcapping": 3.0,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [1.0, 2.0, 4.0],
    "attention_factor": 1.25,
}
TWINS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-linear": {
        "model_type": "llama",
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    },
    "mixtral": {"model_type": "mixtral", **EXPERTS},
    "qwen2": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3"},
    "qwen3moe": {
        "model_type": "qwen3_moe",
        "moe_intermediate_size": 20,
        "norm_topk_prob": True,
        **EXPERTS,
    },
    "phi3": {"model_type": "phi3", "sliding_window": 7},
    "phi3-longrope": {
        "model_type": "phi3",
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 16,
        "rope_scaling": LONGROPE,
    },
    "gemma2": {"model_type": "gemma2", **GEMMA},
    "gemma3": {
        "model_type": "gemma3_text",
        **GEMMA,
        "rope_theta": 1000000.0,
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
    },
}
ARCHITECTURES = {
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "llama": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "phi3": gguf.MODEL_ARCH.PHI3,
    "gemma2": gguf.MODEL_ARCH.GEMMA2,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
}
PAIRED = ("llama", "mixtral")


def write(path: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Write a file by the conventions and the names of the converter of llama.cpp."""
    kind = ARCHITECTURES[config["model_type"]]
    writer: Any = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[kind])
    add_metadata(writer, config)
    names: Any = gguf.get_tensor_name_map(kind, config["num_hidden_layers"])
    for name, values in stacked(tensors).items():
        stem, _, suffix = name.rpartition(".")
        found = names.get_name(stem)
        assert found, f"{name} has no name in GGUF"
        writer.add_tensor(f"{found}.{suffix}", stored(name, values, config))
    for length in ("long", "short"):
        scaling = config.get("rope_scaling", {})
        if f"{length}_factor" in scaling:
            factors = np.array(scaling[f"{length}_factor"], dtype=np.float32)
            writer.add_tensor(f"rope_factors_{length}.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_metadata(writer: Any, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    rotary = int(config["head_dim"] * config.get("partial_rotary_factor", 1))
    writer.add_rope_dimension_count(rotary)
    writer.add_eos_token_id(config["eos_token_id"])
    scaling = config.get("rope_scaling", {})
    adders = {
        "sliding_window": writer.add_sliding_window,
        "num_local_experts": writer.add_expert_count,
        "num_experts_per_tok": writer.add_expert_used_count,
        "moe_intermediate_size": writer.add_expert_feed_forward_length,
        "attn_logit_softcapping": writer.add_attn_logit_softcapping,
        "final_logit_softcapping": writer.add_final_logit_softcapping,
        "original_max_position_embeddings": writer.add_rope_scaling_orig_ctx_len,
        "attention_factor": writer.add_rope_scaling_attn_factors,
        "factor": writer.add_rope_scaling_factor,
    }
    for key, value in {**config, **scaling}.items():
        if key in adders and value is not None:
            adders[key](value)
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Join the experts of a layer into one tensor per projection."""
    found: dict[str, Any] = {}
    for name, tensor in tensors.items():
        before, _, after = name.partition(".experts.")
        if after:
            part = after.partition(".")[2]
            found.setdefault(f"{before}.experts.{part}", []).append(tensor)
        else:
            found[name] = tensor
    return {n: torch.stack(t) if isinstance(t, list) else t for n, t in found.items()}


def stored(name: str, values: Tensor, config: dict[str, Any]) -> NDArray[np.float32]:
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    num_heads = heads.get(name.split(".")[-2])
    if num_heads and config["model_type"] in PAIRED:
        halves = values.unflatten(0, (num_heads, 2, -1))
        values = halves.swapaxes(1, 2).flatten(0, 2)
    if "gemma" in config["model_type"] and name.endswith("norm.weight"):
        values = values + 1
    return np.ascontiguousarray(values.numpy())


@pytest.mark.parametrize("twin", TWINS.values(), ids=TWINS)
def test_k13_a_file_reads_as_its_safetensors_twin(twin: dict[str, Any], tmp_path: Path) -> None:
    config = SIZES | twin
    architecture = read_architecture(config)
    tensors = dict(RandomTensors(architecture, seed=3))

    source = GgufFile(write(tmp_path / "tiny.gguf", config, tensors))

    assert read_architecture(source.config()) == architecture
    read = {name: torch.from_numpy(np.array(values)) for name, values in source.tensors()}
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        torch.testing.assert_close(read[name], tensor, rtol=1e-6, atol=1e-7)
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in read.items()}
    write_checkpoint(source.path, tmp_path)


def test_k13_rows_of_qwen2_are_not_in_pairs(tmp_path: Path) -> None:
    """Taken as Llama's they would be other weights: the order is by architecture."""
    config = SIZES | TWINS["qwen2"]
    tensors = dict(RandomTensors(read_architecture(config), seed=3))
    name = "model.layers.0.self_attn.q_proj.weight"

    source = GgufFile(write(tmp_path / "tiny.gguf", config, tensors))

    paired = stored(name, tensors[name], config | {"model_type": "llama"})
    assert np.array_equal(dict(source.tensors())[name], tensors[name].numpy())
    assert not np.array_equal(paired, tensors[name].numpy())


def test_k13_gemma_27b_scales_by_hidden_size_over_heads(tmp_path: Path) -> None:
    config = SIZES | TWINS["gemma2"] | {"num_hidden_layers": 46, "num_attention_heads": 2}
    config |= {"query_pre_attn_scalar": 16, "head_dim": 8}
    architecture = read_architecture(config)
    tensors = dict(RandomTensors(architecture, seed=3))

    source = GgufFile(write(tmp_path / "tiny.gguf", config, tensors))

    assert read_architecture(source.config()).attention_scale == 0.25


@pytest.mark.parametrize(
    ("twin", "key", "value", "shown"),
    [
        ("phi3", "rope.scaling.attn_factor", 1.5, "attn_factor = 1.5 is not supported without"),
        ("phi3-longrope", "rope.scaling.type", "yarn", "rope.scaling.type = 'yarn' is not"),
        ("phi3-longrope", "rope.scaling.type", "linear", "rope.scaling.type = 'linear' is not"),
        (
            "phi3",
            "rope.scaling.type",
            "longrope",
            "rope.scaling.type = 'longrope' is not",
        ),
        ("phi3-longrope", "rope.scaling.type", "longrope", None),
        ("phi3", "rope.scaling.attn_factor", 1.0, None),
    ],
)
def test_scaling_that_contradicts_the_divisors_of_a_file_is_refused(
    tmp_path: Path, twin: str, key: str, value: float | str, shown: str | None
) -> None:
    config = SIZES | TWINS[twin]
    tensors = dict(RandomTensors(read_architecture(config), seed=3))
    source = GgufFile(write(tmp_path / "tiny.gguf", config, tensors))
    expected = source.config()
    source.metadata[f"phi3.{key}"] = value

    if shown is None:
        assert source.config() == expected
    else:
        with pytest.raises(ModelError, match=shown):
            source.config()
