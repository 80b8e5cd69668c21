"""Whatever a key of ``config.json`` holds, it is read whole or refused in one line, at once."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture, expected_tensors
from noria.runtime.models.families import FAMILIES, read_architecture
from noria.runtime.models.families.family import COMMON_KEYS
from noria.runtime.models.rope_config import KINDS

NUMBERS = [0, -1, 1, 2, 7, 2**31 - 1, 2**31, 2**64, 10**400, 0.5, -1.5, 1e-320, 1e-40, 1e300]
OTHERS = [True, None, "", "x", "1e-5", "9" * 5000, [], [1], [1.0] * 4, [[]], {}, {"a": 1}, b"x"]
TYPES = [["full_attention"] * 2, ["sliding_attention", "full_attention"], ["sliding_attention"]]
VALUES = st.sampled_from([*NUMBERS, math.nan, math.inf, *OTHERS, *TYPES])
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
}
GOOD_ROPES = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"factor": 2.0},
    "dynamic": {"factor": 2.0},
    "longrope": {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
}


@st.composite
def ropes(draw: st.DrawFn) -> dict[str, object]:
    kind = draw(st.sampled_from([*KINDS, "other"]))
    keys = st.sampled_from(["rope_theta", "partial_rotary_factor", *KINDS.get(kind, ("", ()))[1]])
    changes = draw(st.dictionaries(keys, VALUES, max_size=2))
    return {"rope_type": kind, **GOOD_ROPES.get(kind, {}), **changes}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, object]:
    family = draw(st.sampled_from(list(FAMILIES.values())))
    keys = sorted({*COMMON_KEYS, *family.keys} - {"model_type", "architectures"})
    config = {"model_type": family.model_type, **SIZES, "num_experts_per_tok": 1}
    config |= draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=2))
    if draw(st.booleans()):
        blocks = ropes() | st.fixed_dictionaries({"full_attention": ropes()})
        config[draw(st.sampled_from(["rope_scaling", "rope_parameters"]))] = draw(blocks)
    return config


def positions_and_frequencies(architecture: Architecture) -> Iterator[float]:
    """Yield what is computed from the ropes before weights are read."""
    yield architecture.max_len
    for rope in architecture.ropes:
        yield rope.attention_factor
        for max_len in (2, architecture.max_len):
            yield from rope.frequencies(architecture.head_dim, max_len)


@given(configs())
@settings(max_examples=300, deadline=60_000)
def test_any_value_is_read_whole_or_refused_in_one_line(config: dict[str, object]) -> None:
    message = "c.json: "
    try:
        architecture = read_architecture(config, source="c.json")
    except ModelError as error:
        message = str(error)
    else:
        assert all(0 < number < math.inf for number in positions_and_frequencies(architecture))
        assert expected_tensors(architecture)

    assert message.startswith("c.json: ")
    assert "\n" not in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"head_dim": 2**30}, "head_dim 1073741824 must be at most 65536"),
        (
            {"head_dim": None, "hidden_size": 2**30, "num_attention_heads": 2},
            "head_dim 536870912 must be at most 65536",
        ),
        (
            {"model_type": "qwen3_moe", "num_experts": 2**30, "num_experts_per_tok": 1},
            "num_experts of all 2 layers are 2147483648; must be at most 131072",
        ),
        ({"rms_norm_eps": 1e-50}, "rms_norm_eps must be from 1.2e-38 to 3.4e+38"),
        (
            {"model_type": "gemma2", "attn_logit_softcapping": 1e300},
            "attn_logit_softcapping must be from 1.2e-38 to 3.4e+38, as float32 holds it",
        ),
    ],
)
def test_what_no_graph_can_hold_is_refused_before_it_is_listed(
    changes: dict[str, object], shown: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read_architecture({"model_type": "llama", **SIZES, **changes})

    assert shown in str(caught.value)
