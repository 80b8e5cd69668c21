from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture
from noria.runtime.models.families import read_architecture
from noria.runtime.models.gguf_file import GgufFile, half_split_rows
from noria.runtime.models.rope_scaling import Rope

Tensors = dict[str, Tensor]
Config = dict[str, object]
WriteGguf = Callable[..., Path]


def test_a_file_reads_as_its_safetensors_twin(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K13: query and key rows are put back in half-split order."""
    source = GgufFile(write_gguf(tiny_config, tiny_tensors))

    read = {name: torch.tensor(values) for name, values in source.tensors()}
    assert set(read) == set(tiny_tensors)
    assert all(torch.equal(read[name], tensor) for name, tensor in tiny_tensors.items())
    assert source.shapes() == {name: tuple(tensor.shape) for name, tensor in read.items()}
    ours, twin = (read_architecture(config) for config in (source.config(), dict(tiny_config)))
    assert ours == twin


def test_rows_of_a_head_are_pairs_in_the_file() -> None:
    """K13."""
    pairs = np.array([0, 3, 1, 4, 2, 5, 10, 13, 11, 14, 12, 15], dtype=np.float32)

    assert half_split_rows(pairs, 2).tolist() == [0, 1, 2, 3, 4, 5, 10, 11, 12, 13, 14, 15]
    assert half_split_rows(pairs[:, None], 2)[:, 0].tolist() == half_split_rows(pairs, 2).tolist()


def test_a_file_without_output_tensor_is_tied(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K13, K03."""
    del tiny_tensors["lm_head.weight"]

    config = GgufFile(write_gguf(tiny_config, tiny_tensors)).config()

    assert config["tie_word_embeddings"] is True


def test_biases_are_read_and_ordered_as_their_rows(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K10, K13."""
    for layer in range(2):
        for name, size in {"q": 32, "k": 16, "v": 16, "o": 32}.items():
            bias = torch.arange(size, dtype=torch.float32)
            tiny_tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = bias

    source = GgufFile(write_gguf(tiny_config, tiny_tensors))

    read = dict(source.tensors())
    assert source.config()["attention_bias"] is True
    for name in ("q", "k", "v", "o"):
        values = read[f"model.layers.1.self_attn.{name}_proj.bias"]
        assert values.tolist() == list(range(len(values)))


def test_quantized_tensors_come_out_as_fp32(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K13: within the rounding of 8 bits."""
    name = "model.layers.0.mlp.up_proj.weight"

    source = GgufFile(write_gguf(tiny_config, tiny_tensors, quantized=(name,)))

    values = dict(source.tensors())[name]
    expected = tiny_tensors[name].numpy()
    assert values.dtype == np.float32
    assert np.abs(values - expected).max() <= np.abs(expected).max() / 127
    assert not np.array_equal(values, expected)


def test_floats_are_read_as_the_decimals_that_were_meant(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """The file holds 1e-5 in fp32, which is 9.99999974e-06."""
    assert GgufFile(write_gguf(tiny_config, tiny_tensors)).config()["rms_norm_eps"] == 1e-5


def frequencies(architecture: Architecture) -> tuple[float, ...]:
    (rope,) = architecture.ropes
    return rope.frequencies(architecture.head_dim, architecture.max_position_embeddings)


def llama3_divisors(config: Mapping[str, object], scaling: object) -> NDArray[np.float32]:
    plain = read_architecture(dict(config))
    scaled = read_architecture({**config, "rope_scaling": scaling})
    return np.divide(frequencies(plain), frequencies(scaled)).astype(np.float32)


def test_rope_divisors_of_llama3_become_its_scaling(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K13, K05: the file holds one divisor per frequency instead of the four numbers."""
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = tiny_config | {"rope_theta": 500000.0}
    divisors = llama3_divisors(config, scaling)

    source = GgufFile(write_gguf(config, tiny_tensors, rope_divisors=divisors))

    assert source.config()["rope_scaling"] == scaling
    assert not any("rope" in name for name in source.shapes())


def test_other_rope_divisors_are_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K13: an extra rope table is never ignored."""
    divisors = np.array([1, 2, 3, 4], dtype=np.float32)

    source = GgufFile(write_gguf(tiny_config, tiny_tensors, rope_divisors=divisors))

    with pytest.raises(ModelError, match=r"rope_freqs\.weight is not the rope scaling of Llama 3"):
        source.config()


@pytest.mark.parametrize(
    ("metadata", "shown"),
    [
        ({"llama.rope.scaling.type": "yarn"}, "llama.rope.scaling.type = 'yarn'"),
        ({"llama.rope.scaling.type": "linear"}, "llama.rope.scaling.factor is missing"),
        ({"llama.rope.scaling.factor": 2.0}, "llama.rope.scaling.factor = 2.0"),
        ({"llama.expert_count": 8}, "llama.expert_used_count is missing"),
        ({"llama.attention.sliding_window": 4}, "llama.attention.sliding_window = 4"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale = 0.5"),
        ({"llama.rope.dimension_count": 4}, "llama.rope.dimension_count 4 differs from head_dim 8"),
        ({"general.architecture": "falcon"}, "architecture 'falcon' is not supported (supported:"),
    ],
)
def test_metadata_that_would_change_the_result_is_refused(
    tiny_config: Config,
    tiny_tensors: Tensors,
    write_gguf: WriteGguf,
    metadata: dict[str, Any],
    shown: str,
) -> None:
    """K13, K14."""
    path = write_gguf(tiny_config, tiny_tensors, metadata=metadata)

    with pytest.raises(ModelError) as caught:
        GgufFile(path).config()

    assert shown in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "metadata",
    [{"llama.rope.scaling.type": "none"}, {"llama.expert_count": 0}],
)
def test_metadata_that_changes_nothing_is_accepted(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, metadata: dict[str, Any]
) -> None:
    config = GgufFile(write_gguf(tiny_config, tiny_tensors, metadata=metadata)).config()

    assert config["hidden_size"] == 32


def test_all_ids_that_end_something_are_eos(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """J07: the end of a turn is one of them."""
    metadata = {"tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.eot_token_id": 9}

    source = GgufFile(write_gguf(tiny_config, tiny_tensors, metadata=metadata))

    assert source.eos_token_ids() == (2, 9)
    assert source.config()["eos_token_id"] == [2, 9]


def test_an_unknown_tensor_is_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    """K10: never skipped."""
    path = write_gguf(tiny_config, tiny_tensors, extra={"blk.0.attn_q_norm.weight": np.ones(8)})

    with pytest.raises(ModelError, match=r"tensor blk\.0\.attn_q_norm\.weight is not supported"):
        GgufFile(path).shapes()


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a model", b"GGUF"])
def test_a_file_of_another_kind_is_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelError, match="not a readable GGUF file") as caught:
        GgufFile(path)

    assert "\n" not in str(caught.value)


def test_text_that_is_not_utf8_is_one_line(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    path = write_gguf(tiny_config, tiny_tensors, metadata={"general.name": "caf_"})
    path.write_bytes(path.read_bytes().replace(b"caf_", b"caf\xe9"))

    with pytest.raises(ModelError, match="not a readable GGUF file"):
        GgufFile(path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count", "abc"),
        ("llama.attention.head_count", [-1, -1]),
        ("llama.embedding_length", 32.5),
        ("llama.attention.layer_norm_rms_epsilon", "x"),
        ("tokenizer.ggml.eos_token_id", "x"),
    ],
)
def test_a_damaged_value_is_one_line_that_names_the_key(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf, key: str, value: object
) -> None:
    source = GgufFile(write_gguf(tiny_config, tiny_tensors, metadata={key: value}))

    with pytest.raises(ModelError, match=f"metadata {key} is .*; must be ") as caught:
        source.config()

    assert "\n" not in str(caught.value)


def test_rows_that_do_not_divide_into_heads_are_refused(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    changed = {"llama.attention.head_count": 7}
    source = GgufFile(write_gguf(tiny_config, tiny_tensors, metadata=changed))

    with pytest.raises(ModelError, match=r"attn_q\.weight has 32 rows for 7 heads"):
        dict(source.tensors())


def test_a_key_that_is_written_twice_is_named(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    path = write_gguf(
        tiny_config, tiny_tensors, metadata={"general.name": "a", "general.nam_": "b"}
    )
    path.write_bytes(path.read_bytes().replace(b"general.nam_", b"general.name"))

    with pytest.raises(ModelError, match=r"not a readable GGUF file: .*Duplicate general\.name"):
        GgufFile(path)


def test_a_truncated_file_is_one_line(
    tiny_config: Config, tiny_tensors: Tensors, write_gguf: WriteGguf
) -> None:
    path = write_gguf(tiny_config, tiny_tensors)
    path.write_bytes(path.read_bytes()[:-5000])

    with pytest.raises(ModelError, match="not a readable GGUF file"):
        GgufFile(path)


def test_the_real_file_reads_as_published(smollm2_path: Path) -> None:
    source = GgufFile(smollm2_path)

    assert len(source.shapes()) == 272
    assert gguf.GGMLQuantizationType.Q4_1 in {t.tensor_type for t in source._tensors.values()}
    arch = read_architecture(source.config())
    assert (arch.num_layers, arch.hidden_size, arch.intermediate_size) == (30, 576, 1536)
    assert (arch.num_heads, arch.num_kv_heads, arch.head_dim) == (9, 3, 64)
    assert (arch.ropes, arch.rms_norm_eps) == ((Rope(100000.0),), 1e-5)
    assert (arch.vocab_size, arch.max_position_embeddings) == (49152, 8192)
    assert arch.tie_word_embeddings
    assert (arch.bos_token_id, arch.eos_token_ids) == (1, (2,))
