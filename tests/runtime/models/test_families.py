"""What families make of their own keys; results are compared in ``runtime/test_families.py``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture, Experts, expected_tensors
from noria.runtime.models.families import FAMILIES, read_architecture
from noria.runtime.models.rope_scaling import LinearScaling, LongRopeScaling, Rope

SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 256,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 32,
}
SLIDING, FULL = "sliding_attention", "full_attention"


def read(model_type: str, **changes: object) -> Architecture:
    return read_architecture({"model_type": model_type, **SIZES, **changes})


def windows(architecture: Architecture) -> list[int | None]:
    return [kind.window for kind in architecture.layers]


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_missing_keys_take_the_defaults_of_the_family(family: Any) -> None:
    """K09, K14: a short file reads as the long one that transformers makes of it."""
    transformers: Any = pytest.importorskip("transformers")
    special = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    long = transformers.AutoConfig.for_model(family.model_type, **SIZES, **special).to_dict()

    ours = read(family.model_type, **special)

    assert ours == read_architecture(long | {"architectures": [family.class_name]})


def test_a_class_name_alone_tells_the_family() -> None:
    named = {key: value for key, value in SIZES.items() if key != "model_type"}

    found = read_architecture({"architectures": ["Qwen3ForCausalLM"], **named})

    assert found == read("qwen3")


@pytest.mark.parametrize(
    ("model_type", "changes", "shown"),
    [
        ("gemma3", {}, "model_type 'gemma3' is not supported (supported: llama, mistral,"),
        ("qwen2_vl", {}, "model_type 'qwen2_vl' is not supported"),
        ("gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma2", {"hidden_activation": "gelu"}, "hidden_activation 'gelu' is not supported"),
        ("gemma2", {"hidden_act": "silu"}, "hidden_act and hidden_activation differ"),
        ("gemma2", {"sliding_window": None}, "layer_types names 'sliding_attention', but sliding"),
        ("gemma2", {"layer_types": [FULL]}, "must list one entry per layer (4), not 1 entries"),
        ("gemma2", {"layer_types": ["chunked"] * 4}, "layer_types 'chunked' is not supported"),
        ("mistral", {"layer_types": [FULL] * 4}, "layer_types 'full_attention' is not supported"),
        ("qwen2", {"layer_types": [SLIDING] * 4}, "but use_sliding_window is false"),
        ("smollm3", {"layer_types": [SLIDING] * 4}, "but use_sliding_window is false"),
        ("qwen2", {"max_window_layers": -1}, "max_window_layers must be a positive integer"),
        ("qwen3_moe", {"num_experts": 4, "num_local_experts": 5}, "num_local_experts differ"),
        ("qwen3_moe", {"mlp_only_layers": [4]}, "mlp_only_layers must list layers from 0 to 3"),
        ("qwen3_moe", {"num_experts": 4}, "num_experts_per_tok 8 must be at most the number of"),
        ("mixtral", {"hidden_act": "gelu_pytorch_tanh"}, "experts with gelu_tanh"),
        ("smollm3", {"no_rope_layers": [1, 2, 1, 1]}, "no_rope_layers 2 is not supported"),
        ("smollm3", {"no_rope_layers": "all"}, "must list one entry per layer (4), not 'all'"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
        ("phi3", {"head_dim": 6, "partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 must"),
    ],
)
def test_what_a_family_cannot_do_is_refused_by_name(
    model_type: str, changes: dict[str, object], shown: str
) -> None:
    """K14."""
    with pytest.raises(ModelError) as caught:
        read(model_type, **changes)

    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_k12_null_is_no_window_and_a_number_is_one() -> None:
    assert windows(read("mistral", sliding_window=None)) == [None] * 4
    assert windows(read("mistral", sliding_window=4)) == [4] * 4
    assert windows(read("mistral")) == [4096] * 4
    assert windows(read("mixtral")) == [None] * 4


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, [None] * 4),
        ({"sliding_window": 8}, [None] * 4),
        ({"sliding_window": 8, "use_sliding_window": True}, [None] * 4),
        ({"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 0}, [8] * 4),
        (
            {"sliding_window": 8, "use_sliding_window": True, "max_window_layers": 3},
            [None, None, None, 8],
        ),
        (
            {"sliding_window": 8, "use_sliding_window": True, "layer_types": [SLIDING, FULL] * 2},
            [8, None] * 2,
        ),
        ({"sliding_window": 8, "layer_types": [FULL] * 4}, [None] * 4),
    ],
)
def test_k12_qwen2_has_windows_only_where_it_uses_them(
    changes: dict[str, object], expected: list[int | None]
) -> None:
    assert windows(read("qwen2", **changes)) == expected


def test_gemma2_alternates_and_gemma3_sees_everything_in_every_sixth_layer() -> None:
    gemma3 = read("gemma3_text", num_hidden_layers=7)

    assert windows(read("gemma2")) == [4096, None] * 2
    assert windows(gemma3) == [4096] * 5 + [None, 4096]
    assert windows(read("gemma3_text", sliding_window_pattern=2)) == [4096, None] * 2
    assert [kind.rope for kind in gemma3.layers[4:6]] == [Rope(1e4), Rope(1e6)]


@pytest.mark.parametrize(
    "changes",
    [
        {
            "rope_theta": 5e5,
            "rope_local_base_freq": 2e4,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "rope_parameters": {
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 5e5},
                SLIDING: {"rope_type": "default", "rope_theta": 2e4},
            }
        },
    ],
    ids=["older", "newer"],
)
def test_k14_gemma3_scales_the_rope_of_full_layers_only(changes: dict[str, object]) -> None:
    arch = read("gemma3_text", num_hidden_layers=6, **changes)

    assert arch.layers[0].rope == Rope(2e4)
    assert arch.layers[5].rope == Rope(5e5, LinearScaling(8.0))
    assert arch.max_len == 131072


def test_gemma_scales_embeddings_and_scores_and_offsets_norms() -> None:
    arch = read("gemma2", query_pre_attn_scalar=144, head_dim=8)

    assert arch.embedding_scale == 16
    assert arch.attention_scale == pytest.approx(1 / 12)
    assert (arch.attention_softcap, arch.logits_softcap) == (50.0, 30.0)
    assert (arch.norm_offset, arch.activation, arch.tie_word_embeddings) == (1.0, "gelu_tanh", True)


def test_smollm3_leaves_the_rope_out_of_every_fourth_layer() -> None:
    ropes = [kind.rope for kind in read("smollm3").layers]

    assert ropes == [Rope(2e6)] * 3 + [None]


def test_phi4_mini_rotates_a_part_of_each_head() -> None:
    arch = read(
        "phi3",
        head_dim=16,
        partial_rotary_factor=0.75,
        max_position_embeddings=131072,
        rope_scaling={"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [2.0] * 6},
    )

    (rope,) = arch.ropes
    assert rope.rotary_dim(16) == 12
    assert isinstance(rope.scaling, LongRopeScaling)
    assert rope.attention_factor == pytest.approx(1.19023, abs=1e-5)
    assert arch.max_len == 131072


def test_phi3_joins_projections_and_the_others_do_not() -> None:
    """K10: the names decide how a tensor is read."""
    phi3, llama = (
        expected_tensors(read(name, num_key_value_heads=8)) for name in ("phi3", "llama")
    )

    layer = "model.layers.0"
    assert phi3[f"{layer}.self_attn.qkv_proj.weight"] == (48 * 8, 256)
    assert phi3[f"{layer}.mlp.gate_up_proj.weight"] == (96, 256)
    assert f"{layer}.self_attn.qkv_proj.weight" not in llama
    assert len(llama) - len(phi3) == 4 * (2 + 1)


def test_k10_qwen2_has_biases_for_queries_keys_and_values_alone() -> None:
    biased = {name for name in expected_tensors(read("qwen2")) if name.endswith(".bias")}

    layer = {f"self_attn.{part}_proj.bias" for part in "qkv"}
    assert biased == {f"model.layers.{i}.{name}" for i in range(4) for name in layer}


def test_layers_of_qwen3_moe_may_be_dense() -> None:
    arch = read("qwen3_moe", decoder_sparse_step=2, mlp_only_layers=[3], norm_topk_prob=True)

    kinds = [kind.experts for kind in arch.layers]
    assert kinds == [None, Experts(128, 8, 768, True), None, None]
    assert arch.has_experts
    assert not read("qwen3").has_experts


def test_experts_are_called_as_their_family_calls_them() -> None:
    mixtral = expected_tensors(read("mixtral", num_key_value_heads=8))
    qwen = expected_tensors(read("qwen3_moe", num_experts=9))

    assert mixtral["model.layers.3.block_sparse_moe.experts.7.w2.weight"] == (256, 48)
    assert mixtral["model.layers.3.block_sparse_moe.gate.weight"] == (8, 256)
    assert qwen["model.layers.3.mlp.experts.8.down_proj.weight"] == (256, 768)
    assert qwen["model.layers.3.mlp.gate.weight"] == (9, 256)
    assert "model.layers.3.mlp.gate_proj.weight" not in qwen


def test_k07_rotary_dims_must_be_even() -> None:
    with pytest.raises(ModelError, match="head_dim 7 must be even"):
        replace(read("llama"), head_dim=7)
