from collections.abc import Iterator, Mapping

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.architecture import Architecture
from noria.runtime.models.inline import INLINE_KEYS, read_inline

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


class AskedKeys(Mapping[str, object]):
    """A mapping that notes the keys that are asked for."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values_by_key = values
        self.asked: set[str] = set()

    def __getitem__(self, key: str) -> object:
        self.asked.add(key)
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)


def test_the_model_type_and_the_seed_may_be_left_out() -> None:
    architecture, seed = read_inline(SIZES)

    assert architecture == Architecture.from_config({"model_type": "llama", **SIZES})
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


def test_every_accepted_key_is_read() -> None:
    asked = AskedKeys({"model_type": "llama", **SIZES})

    Architecture.from_config(asked)

    assert set(INLINE_KEYS) - {"seed"} <= asked.asked
