from __future__ import annotations

import math

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture, expected_tensors
from noria.runtime.models.families import read_architecture
from noria.runtime.models.rope_scaling import Rope

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


def read(**changes: object) -> Architecture:
    return read_architecture(TINY | changes)


def without(*keys: str) -> dict[str, object]:
    return {key: value for key, value in TINY.items() if key not in keys}


def test_sizes_come_from_config_json_keys() -> None:
    arch = read(rms_norm_eps=1e-5, rope_theta=1e5, bos_token_id=1, eos_token_id=[2, 5, 2])

    assert (arch.vocab_size, arch.hidden_size, arch.intermediate_size) == (61, 32, 48)
    assert (arch.num_layers, arch.num_heads, arch.num_kv_heads, arch.head_dim) == (2, 4, 2, 8)
    assert (arch.rms_norm_eps, arch.ropes) == (1e-5, (Rope(1e5),))
    assert (arch.bos_token_id, arch.eos_token_ids) == (1, (2, 5))


def test_missing_optional_keys_take_the_defaults_of_llama() -> None:
    arch = read()

    assert (arch.rms_norm_eps, arch.ropes) == (1e-6, (Rope(10000.0),))
    assert arch.max_position_embeddings == 2048
    assert not arch.tie_word_embeddings
    assert not arch.qkv_bias
    assert (arch.bos_token_id, arch.eos_token_ids) == (None, ())


def test_a_number_spelled_as_a_string_is_read_as_yaml_users_mean_it() -> None:
    assert read(rms_norm_eps="1e-5").rms_norm_eps == 1e-5


def test_a_model_with_its_text_config_nested_reads_the_same() -> None:
    """K03: the tie flag only in a nested text config."""
    nested = {"model_type": "llama", "text_config": without("model_type")}
    nested["text_config"]["tie_word_embeddings"] = True  # type: ignore[index]

    assert read_architecture(nested) == read(tie_word_embeddings=True)


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"model_type": "gemma3"}, "model_type 'gemma3' is not supported (supported: llama, "),
        ({"model_type": "qwen2"}, "architectures ['LlamaForCausalLM'] is not supported"),
        ({"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported (supported: silu, gelu_py"),
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
        read_architecture(without(key))


def test_a_config_that_names_no_model_type_is_refused() -> None:
    with pytest.raises(ModelError, match="model_type is missing"):
        read_architecture(without("model_type", "architectures"))


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
    assert read_architecture(without("num_key_value_heads")).num_kv_heads == 4
    with pytest.raises(ModelError, match="num_key_value_heads must be a positive integer, not 0"):
        read(num_key_value_heads=0)


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
