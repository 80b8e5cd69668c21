from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from noria.runtime.errors import ModelError
from noria.runtime.models.gguf_file import GgufFile
from noria.runtime.models.gguf_tokenizer import LLAMA3_SPLIT, QWEN2_SPLIT, build_tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6


def metadata(pre: object, **changes: object) -> dict[str, Any]:
    """Special tokens, a user's token, all bytes, and the merges of "ab" and "12"."""
    tokens = ["<s>", "</s>", "<tool>", *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "12"]
    values: dict[str, object] = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [CONTROL, CONTROL, USER_DEFINED] + [NORMAL] * (len(tokens) - 3),
        "merges": ["a b", "1 2"],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{key}": value for key, value in (values | changes).items()}


def pieces(pre: str, text: str, **changes: object) -> list[str]:
    backend = build_tokenizer(metadata(pre, **changes)).backend
    tokens: list[str] = backend.encode(text).tokens
    return tokens


@pytest.mark.parametrize(
    ("pre", "number"),
    [("gpt-2", ["12"]), ("smollm", ["1", "2"]), ("llama-bpe", ["12"]), ("qwen2", ["1", "2"])],
)
def test_the_pre_tokenizer_decides_how_numbers_split(pre: str, number: list[str]) -> None:
    """K13: SmolLM2 and Qwen2 have single digits."""
    assert pieces(pre, "ab12", add_bos_token=False) == ["ab", *number]


def test_control_tokens_are_special_and_tokens_of_users_stay_visible() -> None:
    backend = build_tokenizer(metadata("smollm")).backend

    ids = backend.encode("a<tool></s>").ids

    assert ids[1:] == [2, 1]
    assert backend.decode(ids) == "a<tool>"
    assert backend.decode(ids, skip_special_tokens=False) == "a<tool></s>"


@pytest.mark.parametrize(
    ("pre", "flag", "adds"),
    [
        ("smollm", None, False),
        ("smollm", True, True),
        ("llama-bpe", None, True),
        ("llama-bpe", False, False),
    ],
)
def test_bos_is_added_as_the_metadata_says(pre: str, flag: bool | None, adds: bool) -> None:
    """H02: Llama 3 files that leave it out mean yes."""
    changes = {} if flag is None else {"add_bos_token": flag}

    assert ("<s>" in pieces(pre, "ab", **changes)) == adds


def test_the_split_of_llama3_is_the_one_that_transformers_has() -> None:
    convert: Any = pytest.importorskip("transformers.convert_slow_tokenizer")
    parameters = inspect.signature(convert.TikTokenConverter.__init__).parameters

    assert parameters["pattern"].default == LLAMA3_SPLIT


def test_the_split_of_qwen2_is_the_one_that_transformers_has() -> None:
    qwen2: Any = pytest.importorskip("transformers.models.qwen2.tokenization_qwen2")

    assert qwen2.PRETOKENIZE_REGEX == QWEN2_SPLIT


def test_qwen2_composes_letters_and_their_accents() -> None:
    composed, apart = ("\u00e9", "e\u0301")

    assert pieces("qwen2", apart) == pieces("qwen2", composed)
    assert pieces("smollm", apart) != pieces("smollm", composed)


def test_the_config_names_special_tokens_and_the_template() -> None:
    values = metadata("smollm") | {"tokenizer.chat_template": "{{ messages }}"}

    assert build_tokenizer(values).config == {
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": "{{ messages }}",
    }


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"model": "bert"}, "tokenizer 'bert' with pre-tokenizer 'smollm' is not supported"),
        ({"model": "llama"}, "metadata tokenizer.ggml.scores is missing"),
        ({"pre": "tekken"}, "pre-tokenizer 'tekken' is not supported in GGUF files"),
        ({"model": None}, "tokenizer None"),
        ({"merges": []}, "metadata tokenizer.ggml.merges is missing"),
    ],
)
def test_other_tokenizers_are_refused_by_name(changes: dict[str, object], shown: str) -> None:
    """K13."""
    with pytest.raises(ModelError) as caught:
        build_tokenizer(metadata(**({"pre": "smollm"} | changes)))

    assert shown in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("unknown_token_id", 9999),
        ("bos_token_id", -1),
        ("eos_token_id", "x"),
        ("scores", [0.0]),
        ("token_type", [1, 1]),
        ("token_type", "x"),
        ("tokens", [1, 2]),
        ("tokens", 7),
        ("merges", ["ab"]),
        ("merges", ["a zz"]),
        ("merges", "a b"),
    ],
)
def test_damaged_metadata_is_one_line_that_names_the_key(key: str, value: object) -> None:
    with pytest.raises(ModelError) as caught:
        build_tokenizer(metadata("smollm", **{key: value}))

    assert str(caught.value).startswith(f"metadata tokenizer.ggml.{key} ")
    assert "\n" not in str(caught.value)


def test_a_sentencepiece_vocabulary_joins_by_score() -> None:
    """K13: special tokens and bytes take no part; Llama 2 files that do not say add a bos."""
    tokens = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "b", "ab", "\u2581ab", "<s"]
    kinds = [UNKNOWN, CONTROL, CONTROL, BYTE] + [NORMAL] * (len(tokens) - 4)
    values = {
        "model": "llama",
        "pre": "default",
        "tokens": tokens,
        "token_type": kinds,
        "scores": [0.0] * 7 + [-1.0, -2.0, -3.0],
        "unknown_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    built = build_tokenizer({f"tokenizer.ggml.{key}": value for key, value in values.items()})

    ids = built.backend.encode("ab ab\n</s>").ids
    assert ids == [1, 8, 8, 3, 2]
    assert built.backend.decode(ids) == "ab ab\n"
    assert built.config == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


SAMPLES = {
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "In 2024, 3.14159 != 1,000": [
        *(788, 216, 34, 32, 34, 36, 28, 216, 35, 30, 33, 36, 33, 37, 41, 6541, 216, 33, 28),
        *(32, 32, 32),
    ],
    "日本語と中": [23274, 115, 40993, 179, 120, 248, 7365, 118, 28589],
    "def f(x):\n\treturn x**2  # done\n\n": [
        *(1604, 275, 24, 104, 727, 198, 197, 5406, 1792, 828, 34, 216, 907, 2294, 1116)
    ],
    "<|im_start|>user\nhi<|im_end|>": [1, 4093, 198, 6004, 2],
}


def test_the_real_tokenizer_gives_the_published_ids(smollm2_path: Path) -> None:
    """The ids are those of transformers and of llama.cpp for the same file."""
    backend = build_tokenizer(GgufFile(smollm2_path).metadata).backend

    for text, ids in SAMPLES.items():
        assert backend.encode(text).ids == ids
    for text in (*SAMPLES, "naïve 日本語 👩‍👩‍👧 e\u0301 \r\n ½ Ⅷ"):
        assert backend.decode(backend.encode(text).ids, skip_special_tokens=False) == text
