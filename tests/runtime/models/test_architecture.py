from __future__ import annotations

import math
from typing import Any

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import (
    Architecture,
    Rope,
    expected_tensors,
    inverse_frequencies,
)

TINY: dict[str, object] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def read(**changes: object) -> Architecture:
    return Architecture.from_config(TINY | changes)


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in TINY.items() if key not in keys}


def test_sizes_come_from_config_json_keys() -> None:
    arch = read(rms_norm_eps=1e-5, rope_theta=1e5, bos_token_id=1, eos_token_id=[2, 5, 2])

    assert (arch.vocab_size, arch.hidden_size, arch.intermediate_size) == (61, 32, 48)
    assert (arch.num_layers, arch.num_heads, arch.num_kv_heads, arch.head_dim) == (2, 4, 2, 8)
    assert (arch.rms_norm_eps, arch.rope) == (1e-5, Rope(1e5))
    assert (arch.bos_token_id, arch.eos_token_ids) == (1, (2, 5))


def test_missing_optional_keys_take_the_defaults_of_llama() -> None:
    arch = read()

    assert (arch.rms_norm_eps, arch.rope.theta) == (1e-6, 10000.0)
    assert arch.max_position_embeddings == 2048
    assert not arch.tie_word_embeddings
    assert not arch.attention_bias
    assert (arch.bos_token_id, arch.eos_token_ids) == (None, ())


def test_a_number_spelled_as_a_string_is_read_as_yaml_users_mean_it() -> None:
    assert read(rms_norm_eps="1e-5").rms_norm_eps == 1e-5


def test_a_model_with_its_text_config_nested_reads_the_same() -> None:
    """K03: the tie flag only in a nested text config."""
    nested = {"model_type": "llama", "text_config": without("model_type")}
    nested["text_config"]["tie_word_embeddings"] = True  # type: ignore[index]

    assert Architecture.from_config(nested) == read(tie_word_embeddings=True)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"model_type": "qwen2"}, "model_type 'qwen2' is not supported (supported: llama)"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config 'awq'"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"hidden_size": "32"}, "hidden_size must be a positive integer, not '32'"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a positive integer, not 0"),
        ({"vocab_size": True}, "vocab_size must be a positive integer, not True"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps must be a number above 0, not 'tiny'"),
        ({"rms_norm_eps": math.nan}, "rms_norm_eps must be a number above 0"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"eos_token_id": 61}, "eos_token_id must be ids from 0 to 60, not 61"),
        ({"eos_token_id": [2, "</s>"]}, "eos_token_id"),
        ({"bos_token_id": [1, 2]}, "bos_token_id must be one token id"),
        ({"head_dim": 7}, "head_dim 7 must be even"),
    ],
)
def test_what_is_not_built_or_wrong_is_refused_by_name(
    changes: dict[str, object], shown: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read(**changes)

    assert shown in str(caught.value)
    assert str(caught.value).startswith("config.json: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_attention_heads"])
def test_a_required_size_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(ModelError, match=key):
        Architecture.from_config(without(key))


def test_a_config_that_names_no_model_type_is_refused() -> None:
    with pytest.raises(ModelError, match="model_type is missing"):
        Architecture.from_config(without("model_type", "architectures"))


def test_training_only_and_null_keys_are_accepted() -> None:
    assert read(pretraining_tp=2, sliding_window=None, quantization_config=None) == read()


def test_a_sliding_window_is_refused() -> None:
    """K12: a window is never ignored."""
    with pytest.raises(ModelError, match="sliding_window 4 is not supported"):
        read(sliding_window=4)
    with pytest.raises(ModelError, match="layer_types 'sliding_attention'"):
        read(layer_types=["full_attention", "sliding_attention"])


def test_head_dim_is_its_own_key() -> None:
    """K07: hidden 24, heads 4, kv 2, head_dim 8."""
    arch = read(hidden_size=24, head_dim=8)
    shapes = expected_tensors(arch)

    layer = "model.layers.1.self_attn"
    assert shapes[f"{layer}.q_proj.weight"] == (32, 24)
    assert shapes[f"{layer}.k_proj.weight"] == (16, 24)
    assert shapes[f"{layer}.v_proj.weight"] == (16, 24)
    assert shapes[f"{layer}.o_proj.weight"] == (24, 32)


def test_a_null_head_dim_means_hidden_over_heads_if_that_is_whole() -> None:
    """K07: refused when it is not."""
    assert read(head_dim=None).head_dim == 8
    with pytest.raises(ModelError, match=r"hidden_size 30 is not a multiple .* 4"):
        read(head_dim=None, hidden_size=30)


@pytest.mark.parametrize(("heads", "kv_heads"), [(5, 2), (4, 8)])
def test_heads_that_kv_heads_do_not_divide_are_refused(heads: int, kv_heads: int) -> None:
    """K09: both numbers are in the message."""
    with pytest.raises(ModelError, match=rf"num_attention_heads {heads} .* {kv_heads}"):
        read(num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=8)


def test_missing_kv_heads_mean_one_per_head_and_zero_is_refused() -> None:
    """K09."""
    assert Architecture.from_config(without("num_key_value_heads")).num_kv_heads == 4
    with pytest.raises(ModelError, match="num_key_value_heads must be a positive integer, not 0"):
        read(num_key_value_heads=0)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
    ],
    ids=["type", "rope_type", "rope_parameters"],
)
def test_llama3_scaling_stretches_long_wavelengths(changes: dict[str, object]) -> None:
    """K05: head_dim 64, theta 500000, factor 32, low 1, high 4, original 8192."""
    plain = inverse_frequencies(read(head_dim=64, rope_theta=500000.0))

    scaled = inverse_frequencies(read(head_dim=64, **changes))

    ratios = [after / before for after, before in zip(scaled, plain, strict=True)]
    assert ratios[:15] == [1.0] * 15
    assert ratios[15:18] == pytest.approx([0.605573, 0.303743, 0.103448], abs=5e-7)
    assert ratios[18:] == pytest.approx([1 / 32] * 14, rel=1e-15)


def test_llama3_scaling_of_a_tiny_model() -> None:
    """K05: head_dim 8, theta 10000, factor 8, original 64."""
    block = LLAMA3 | {"factor": 8, "original_max_position_embeddings": 64, "type": "llama3"}

    frequencies = inverse_frequencies(read(rope_scaling=block))

    assert frequencies == pytest.approx([1, 0.013042256, 0.00125, 0.000125], rel=1e-7)


@pytest.mark.parametrize("block", [None, {}, {"type": "default"}, {"rope_type": "default"}])
def test_null_and_empty_scaling_mean_none(block: object) -> None:
    """K14."""
    assert read(rope_scaling=block).rope == Rope(10000.0)


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("kind", ["linear", "yarn", "dynamic", "longrope", "mystery"])
def test_other_rope_types_are_refused_by_name(spelling: str, kind: str) -> None:
    """K14: whichever key names them, in either block."""
    for key in ("rope_scaling", "rope_parameters"):
        with pytest.raises(ModelError, match=f"{key}: rope type '{kind}' is not supported"):
            read(**{key: {spelling: kind, "factor": 2.0}})


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"factor": 2.0}, "rope type None"),
        ({"type": "default", "factor": 2.0}, "factor 2.0 has no meaning for 'default'"),
        ({"type": "llama3", **LLAMA3, "beta_fast": 32}, "beta_fast 32 has no meaning"),
        ({"type": "llama3", "rope_type": "default", **LLAMA3}, "'default' and 'llama3'"),
        ({"type": "llama3", "factor": 8.0}, "low_freq_factor must be a number above 0"),
        ({"type": "llama3", **LLAMA3, "high_freq_factor": 1.0}, "must be below high_freq_factor"),
        (["llama3"], "must be a mapping"),
    ],
)
def test_a_scaling_block_is_never_ignored_in_part(block: object, shown: str) -> None:
    """K14."""
    with pytest.raises(ModelError) as caught:
        read(rope_scaling=block)

    assert shown in str(caught.value)


def test_two_scaling_blocks_must_agree() -> None:
    """K14."""
    block = {"rope_type": "llama3", **LLAMA3}

    assert read(rope_scaling=block, rope_parameters=block).rope.kind == "llama3"
    with pytest.raises(ModelError, match="rope_scaling and rope_parameters differ"):
        read(rope_scaling=block, rope_parameters={"rope_type": "default"})


@pytest.mark.parametrize("kind", ["default", "llama3"])
def test_frequencies_equal_those_of_transformers(kind: str) -> None:
    """K05: transformers computes them in float32."""
    transformers: Any = pytest.importorskip("transformers")
    block = {"rope_type": kind, "rope_theta": 500000.0} | (LLAMA3 if kind == "llama3" else {})
    config = transformers.LlamaConfig(**without("architectures"), rope_parameters=block)
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)

    ours = inverse_frequencies(Architecture.from_config(config.to_dict()))

    assert ours == pytest.approx(module.inv_freq.tolist(), rel=1e-6)


def test_biases_and_the_untied_head_are_expected_when_configured() -> None:
    """K10: a Llama config with attention_bias has q, k, v and o biases."""
    plain = expected_tensors(read(tie_word_embeddings=True))
    biased = expected_tensors(read(attention_bias=True, mlp_bias=True))

    added = {name: shape for name, shape in biased.items() if name not in plain}
    first = {name.removeprefix("model.layers.0."): s for name, s in added.items() if ".0." in name}
    assert first == {
        "self_attn.q_proj.bias": (32,),
        "self_attn.k_proj.bias": (16,),
        "self_attn.v_proj.bias": (16,),
        "self_attn.o_proj.bias": (32,),
        "mlp.gate_proj.bias": (48,),
        "mlp.up_proj.bias": (48,),
        "mlp.down_proj.bias": (32,),
    }
    assert added["lm_head.weight"] == (61, 32)
    assert len(added) == 2 * 7 + 1
