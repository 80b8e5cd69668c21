"""Rope blocks of ``config.json``, and the frequencies that they stand for."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture
from noria.runtime.models.families import read_architecture
from noria.runtime.models.rope_config import KINDS as KEYS_OF
from noria.runtime.models.rope_scaling import (
    DynamicScaling,
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    Rope,
)

TINY: dict[str, object] = {
    "model_type": "llama",
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
KINDS = "default, linear, llama3, yarn, dynamic, longrope"


def read(**changes: object) -> Architecture:
    return read_architecture(TINY | changes)


def rope_of(**changes: object) -> Rope:
    (rope,) = read(**changes).ropes
    return rope


def frequencies(*, max_len: int = 2048, **changes: object) -> tuple[float, ...]:
    architecture = read(**changes)
    (rope,) = architecture.ropes
    return rope.frequencies(architecture.head_dim, max_len)


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 500000.0, "rope_scaling": {"type": "llama3", **LLAMA3}},
        {"rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
        {"rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3}},
    ],
    ids=["type", "rope_type", "rope_parameters"],
)
def test_k05_llama3_scaling_stretches_long_wavelengths(changes: dict[str, Any]) -> None:
    """K05: head_dim 64, theta 500000, factor 32, low 1, high 4, original 8192."""
    plain = frequencies(head_dim=64, rope_theta=500000.0)

    scaled = frequencies(head_dim=64, **changes)

    ratios = [after / before for after, before in zip(scaled, plain, strict=True)]
    assert ratios[:15] == [1.0] * 15
    assert ratios[15:18] == pytest.approx([0.605573, 0.303743, 0.103448], abs=5e-7)
    assert ratios[18:] == pytest.approx([1 / 32] * 14, rel=1e-15)


def test_k05_llama3_scaling_of_a_tiny_model() -> None:
    """K05: head_dim 8, theta 10000, factor 8, original 64."""
    block = LLAMA3 | {"factor": 8, "original_max_position_embeddings": 64, "type": "llama3"}

    found = frequencies(rope_scaling=block)

    assert found == pytest.approx([1, 0.013042256, 0.00125, 0.000125], rel=1e-7)


@pytest.mark.parametrize("block", [None, {}, {"type": "default"}, {"rope_type": "default"}])
def test_k14_null_and_empty_scaling_mean_none(block: object) -> None:
    assert rope_of(rope_scaling=block) == Rope(10000.0)


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
def test_k14_linear_scaling_works_by_either_key(spelling: str) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        rope = rope_of(**{key: {spelling: "linear", "factor": 2}})

        assert rope == Rope(10000.0, LinearScaling(2.0))
        assert rope.frequencies(8, 64) == pytest.approx([0.5, 0.05, 0.005, 0.0005])


@pytest.mark.parametrize("spelling", ["type", "rope_type"])
@pytest.mark.parametrize("kind", ["mystery", "ntk", "proportional"])
def test_k14_other_rope_types_are_refused_by_name(spelling: str, kind: str) -> None:
    for key in ("rope_scaling", "rope_parameters"):
        shown = rf"{key}: rope type '{kind}' is not supported \(supported: {KINDS}\)"
        with pytest.raises(ModelError, match=shown):
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
        ({"type": "linear"}, "factor must be a number above 0, not None"),
        ({"type": "linear", "factor": 0.5}, "factor 0.5 must be at least 1"),
        ({"type": "linear", "factor": 2, "alpha": 1}, "alpha 1 has no meaning for 'linear'"),
        ({"type": "dynamic", "factor": 2, "original_max_position_embeddings": 4}, "no meaning"),
        ({"type": "yarn", "factor": 4, "mscale": 1.0}, "mscale_all_dim must be a number above 0"),
        ({"type": "longrope", "short_factor": [1.0] * 4}, "long_factor must be a list of numbers"),
        (
            {"type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 3},
            "short_factor and long_factor must list 4 numbers",
        ),
        (
            {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 5},
            "short_factor and long_factor must list 4 numbers",
        ),
        (
            {
                "type": "longrope",
                "short_factor": [1.0] * 4,
                "long_factor": [1.0] * 4,
                "original_max_position_embeddings": 1,
            },
            "original_max_position_embeddings 1 must be at least 2",
        ),
        ({"type": "linear", "factor": 1e30}, "factor 1e+30 must be at most 2**31 - 1"),
        ({"type": "yarn", "factor": 2.0, "rope_theta": 1e-320}, "rope_theta must be from"),
        ({"type": "yarn", "factor": 2.0, "rope_theta": 1}, "rope_theta 1.0 and its scaling give"),
        (
            {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [1.0] * 3 + ["x"]},
            "long_factor[3] must be a number above 0, not 'x'",
        ),
        (
            {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "long_mscale": 1.2},
            "long_mscale 1.2 has no meaning for 'longrope'",
        ),
        (
            {"type": "linear", "factor": 2, "partial_rotary_factor": 0.5},
            "partial_rotary_factor 0.5",
        ),
    ],
)
def test_k14_a_scaling_block_is_never_ignored_in_part(block: object, shown: str) -> None:
    with pytest.raises(ModelError) as caught:
        read(rope_scaling=block)

    assert shown in str(caught.value)
    assert "\n" not in str(caught.value)


def test_k14_two_scaling_blocks_must_agree() -> None:
    block = {"rope_type": "llama3", **LLAMA3}

    rope = rope_of(rope_scaling=block, rope_parameters=block)

    assert rope.scaling == Llama3Scaling(32.0, 1.0, 4.0, 8192)
    with pytest.raises(ModelError, match="rope_scaling and rope_parameters differ"):
        read(rope_scaling=block, rope_parameters={"rope_type": "default"})


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 64,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
}
AGAINST_TRANSFORMERS = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "llama3": {"rope_type": "llama3", "rope_theta": 500000.0, **LLAMA3},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": YARN,
    "yarn-mscale": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7, "beta_fast": 16.0},
    "yarn-whole-ramp": {**YARN, "truncate": False, "beta_slow": 2.0},
    "yarn-narrow-ramp": {**YARN, "beta_slow": 4.0, "beta_fast": 4.001},
    "yarn-attention-factor": {**YARN, "attention_factor": 0.9},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "longrope": {**LONGROPE, "factor": 4.0},
    "longrope-attention-factor": {**LONGROPE, "factor": 4.0, "attention_factor": 1.5},
}


@pytest.mark.parametrize("max_len", [64, 100, 256])
@pytest.mark.parametrize("block", AGAINST_TRANSFORMERS.values(), ids=AGAINST_TRANSFORMERS)
def test_k05_frequencies_equal_those_of_transformers(block: dict[str, Any], max_len: int) -> None:
    """K05: transformers computes them in float32, dynamic ones from the length of the input."""
    torch: Any = pytest.importorskip("torch")
    transformers: Any = pytest.importorskip("transformers")
    positions = 64 if block["rope_type"] == "dynamic" else 256
    sizes = TINY | {"hidden_size": 64, "max_position_embeddings": positions}
    parameters = {"rope_theta": 10000.0} | block
    config = transformers.LlamaConfig(**sizes, rope_parameters=parameters)
    module = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(config)
    module(torch.zeros(1, max_len, 8), torch.arange(max_len)[None])

    (rope,) = read_architecture(config.to_dict()).ropes

    assert rope.frequencies(16, max_len) == pytest.approx(module.inv_freq.tolist(), rel=2e-6)
    assert rope.attention_factor == pytest.approx(module.attention_scaling, rel=1e-12)


def test_dynamic_scaling_changes_nothing_up_to_the_positions_of_training() -> None:
    block = {"type": "dynamic", "factor": 4.0}

    assert rope_of(rope_scaling=block).scaling == DynamicScaling(4.0, 2048)
    assert frequencies(max_len=2048, rope_scaling=block) == frequencies()
    assert frequencies(max_len=2049, rope_scaling=block) != frequencies()


def test_longrope_takes_its_long_factors_beyond_the_original_context() -> None:
    block = LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    changes = {"rope_scaling": block, "max_position_embeddings": 256}

    assert frequencies(max_len=64, **changes) == frequencies()
    assert frequencies(max_len=65, **changes) == pytest.approx([f / 2 for f in frequencies()])


def test_the_first_files_of_phi3_call_longrope_su() -> None:
    block = {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    changes = {"max_position_embeddings": 256, "original_max_position_embeddings": 64}

    rope = rope_of(rope_scaling=block, **changes)

    assert isinstance(rope.scaling, LongRopeScaling)
    assert rope.scaling.original_max_position_embeddings == 64
    assert rope.attention_factor == pytest.approx((1 + 1 / 3) ** 0.5)


@pytest.mark.parametrize(
    ("block", "reach"),
    [
        (None, 2048),
        ({"type": "linear", "factor": 2.5}, 5120),
        ({"type": "dynamic", "factor": 2.0}, 4096),
        ({"type": "yarn", "factor": 4.0}, 8192),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 2048),
        ({"type": "llama3", **LLAMA3}, 2048),
        (LONGROPE | {"short_factor": [1.0] * 4, "long_factor": [1.0] * 4}, 2048),
    ],
    ids=["none", "linear", "dynamic", "yarn", "yarn-original", "llama3", "longrope"],
)
def test_a_model_reaches_what_its_scaling_makes_of_its_positions(block: object, reach: int) -> None:
    assert read(rope_scaling=block).max_len == reach


NUMBERS = st.one_of(
    st.sampled_from([0, 1, 1.0, 2, 64, 2**31 - 1, 1e-300, 1e300, 5e-324]),
    st.floats(min_value=0.1, max_value=100.0),
)
LISTS = st.lists(NUMBERS, min_size=4, max_size=4)


@st.composite
def blocks(draw: st.DrawFn) -> dict[str, object]:
    """A block of a known kind with every key that it must have, and some that it may."""
    kind = draw(st.sampled_from(sorted(KEYS_OF)))
    values = {
        key: draw(LISTS if key.endswith(("short_factor", "long_factor")) else NUMBERS)
        for key in KEYS_OF[kind][1]
        if key != "truncate" and draw(st.integers(0, 4))
    }
    return {"rope_type": kind, "rope_theta": draw(NUMBERS), **values}


@given(block=blocks(), max_len=st.sampled_from([1, 64, 65, 4096]))
def test_any_numbers_give_frequencies_or_one_line(block: dict[str, Any], max_len: int) -> None:
    """K14: extreme numbers are no traceback either."""
    message = "config.json: "
    try:
        architecture = read(rope_parameters=block)
    except ModelError as error:
        message = str(error)
    else:
        (rope,) = architecture.ropes
        found = rope.frequencies(8, min(max_len, architecture.max_len))
        assert len(found) == 4
        assert all(map(math.isfinite, [*found, rope.attention_factor]))

    assert message.startswith("config.json: ")
