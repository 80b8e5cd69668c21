import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.runtime.errors import ModelError
from noria.runtime.models.config_fields import ConfigFields
from noria.runtime.models.families import FAMILIES, read_architecture
from noria.runtime.models.families.family import COMMON_KEYS, Family
from noria.runtime.models.inline import INLINE_KEYS, read_inline
from noria.runtime.models.rope_config import KINDS
from noria.runtime.value_text import value_text

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
HUGE = 16**5000
"""Beyond every float, and Python refuses to write it in decimal."""
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=3),
    st.sampled_from(
        [2**31, 10**400, -(10**400), str(10**400), *KINDS, "llama", "sliding_attention"]
    ),
)
ROPE_KEYS = (
    "rope_theta",
    "partial_rotary_factor",
    *(k for _, keys in KINDS.values() for k in keys),
)
BLOCK_KEYS = st.sampled_from(["type", "rope_type", *ROPE_KEYS, "full_attention", "quant_method"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(BLOCK_KEYS | SCALARS, inner, max_size=3)
    ),
    max_leaves=6,
)


def test_the_model_type_and_the_seed_may_be_left_out() -> None:
    architecture, seed = read_inline(SIZES)

    assert architecture == read_architecture({"model_type": "llama", **SIZES})
    assert seed == 0


def test_the_seed_of_the_weights_is_read() -> None:
    assert read_inline({**SIZES, "seed": 2**64 - 1})[1] == 2**64 - 1


@pytest.mark.parametrize("seed", [-1, True, "1", 1.0, 2**64, None])
def test_a_seed_that_is_no_64_bit_integer_is_refused(seed: object) -> None:
    with pytest.raises(ModelError) as caught:
        read_inline({**SIZES, "seed": seed}, "model")

    assert str(caught.value) == (f"model.seed: is {seed!r}; must be an integer from 0 to 2**64 - 1")


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("num_key_value_head", "num_key_value_heads"),
        ("num-hidden-layers", "num_hidden_layers"),
        ("Head_Dim", "head_dim"),
    ],
)
def test_an_unknown_key_names_the_nearest_one_b01(key: str, near: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_inline({**SIZES, key: 2})

    assert str(caught.value) == f"model.{key}: unknown key; did you mean {near}?"


def test_a_key_near_none_shows_all_b01() -> None:
    with pytest.raises(ModelError, match=r"^model\.zzz: unknown key; the keys are architectures, "):
        read_inline({**SIZES, "zzz": 2})


@given(
    family=st.sampled_from(list(FAMILIES.values())),
    changes=st.dictionaries(st.sampled_from(INLINE_KEYS), VALUES, min_size=1, max_size=2),
)
def test_any_value_is_read_or_refused_in_one_line(
    family: Family, changes: dict[str, object]
) -> None:
    message = "model"
    try:
        read_inline({"model_type": family.model_type, **SIZES, **changes})
    except ModelError as error:
        message = str(error)

    assert message.startswith("model")
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("architectures", [["x"]], "architectures [['x']] is not supported (supported: Llama"),
        ("rope_theta", 10**400, "rope_theta must be a number above 0, not a number of 1329 bits"),
        ("rms_norm_eps", str(10**400), "rms_norm_eps must be a number above 0, not '1000"),
        ("rope_scaling", {1: 2, "a": 3, "type": "default"}, "rope_scaling: 1 2 has no meaning"),
        ("vocab_size", 10**9, "vocab_size must be at most 1048576, not 1000000000"),
        ("num_hidden_layers", 4097, "num_hidden_layers must be at most 4096, not 4097"),
        ("intermediate_size", 2**31, "intermediate_size must be at most 2**31 - 1, not 2147483648"),
        ("hidden_size", HUGE, "hidden_size must be at most 2**31 - 1, not a number of 20001 bits"),
        ("eos_token_id", [HUGE], "eos_token_id must be ids from 0 to 60, not [a number of 2000"),
        ("seed", HUGE, "seed: is a number of 20001 bits; must be an integer from 0 to"),
    ],
    ids=value_text,
)
def test_values_that_have_no_hash_no_float_or_no_text_are_refused(
    key: str, value: object, message: str
) -> None:
    with pytest.raises(ModelError) as caught:
        read_inline({**SIZES, key: value})

    assert message in str(caught.value)


OF_FAMILIES: dict[str, dict[str, object]] = {
    "phi3": {"rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
    "qwen2": {"use_sliding_window": True},
    "qwen3": {"use_sliding_window": True},
}
"""What a family must be told to read all of its keys."""


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_accepted_key_of_a_family_is_read(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, get = set[str](), ConfigFields.get

    def noted(fields: ConfigFields, key: str) -> object:
        asked.add(key)
        return get(fields, key)

    monkeypatch.setattr(ConfigFields, "get", noted)
    sizes = {**SIZES, "head_dim": 2, "num_key_value_heads": 2}

    read_inline(
        {"model_type": family.model_type, **sizes, **OF_FAMILIES.get(family.model_type, {})}
    )

    assert {*COMMON_KEYS, *family.keys} <= asked


def test_a_key_of_another_family_is_refused() -> None:
    with pytest.raises(ModelError) as caught:
        read_inline({**SIZES, "num_local_experts": 4})

    shown = "model.num_local_experts: has no meaning for model_type 'llama'"
    assert str(caught.value) == shown
