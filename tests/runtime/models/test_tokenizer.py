from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from noria.runtime.errors import RequestError
from noria.runtime.models import tokenizer as tokenizer_module
from noria.runtime.models.architecture import Architecture, LayerKind
from noria.runtime.models.byte_tokenizer import byte_tokenizer
from noria.runtime.models.tokenizer import Tokenizer
from noria.runtime.models.tokenizer_files import load_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
WITH_BOS = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
WITHOUT_BOS = "{% for m in messages %}{{ m.content }}{% endfor %}"
BOS_IF_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ bos_token }}{% endif %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)
WriteTokenizer = Callable[..., None]


def loaded(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def byte_level() -> Tokenizer:
    architecture = Architecture(
        vocab_size=300,
        hidden_size=8,
        intermediate_size=8,
        layers=(LayerKind(),) * 1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        bos_token_id=1,
        eos_token_ids=(2, 7),
    )
    tokenizer = byte_tokenizer(architecture)
    assert tokenizer is not None
    return tokenizer


BYTE_LEVEL = byte_level()


def test_ids_round_trip_and_unknown_ids_have_no_text() -> None:
    text = "  Digits 2024, 日本語, e\u0301\r\n"

    assert BYTE_LEVEL.decode(BYTE_LEVEL.encode(text)) == text
    assert BYTE_LEVEL.decode([*BYTE_LEVEL.encode("a"), 10**6]) == "a"
    assert BYTE_LEVEL.decode([]) == ""


@pytest.mark.parametrize(
    ("template", "roles"),
    [
        (WITH_BOS, ["user"]),
        (WITHOUT_BOS, ["user"]),
        (BOS_IF_SYSTEM, ["user"]),
        (BOS_IF_SYSTEM, ["system", "user"]),
    ],
)
def test_a_chat_has_exactly_one_bos(
    tmp_path: Path, write_tokenizer: WriteTokenizer, template: str, roles: list[str]
) -> None:
    """H01, H02: whether the template writes it or the tokenizer adds it."""
    write_tokenizer(tmp_path, chat_template=template)
    tokenizer = loaded(tmp_path)
    messages = [{"role": role, "content": "hi"} for role in roles]

    ids = tokenizer.encode_chat(messages)

    assert tokenizer.bos_token_id == 0
    assert ids[0] == 0
    assert ids.count(0) == 1
    assert ids == tokenizer.encode(tokenizer.render_chat(messages))


def test_the_template_decides_where_the_tokenizer_adds_no_bos(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    """H02: nothing adds what neither asks for."""
    write_tokenizer(tmp_path, adds_bos=False, chat_template=WITHOUT_BOS)

    assert 0 not in loaded(tmp_path).encode_chat(MESSAGES)


def test_a_raw_prompt_that_begins_with_bos_gets_no_second(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    """H01: the same rule as for chats."""
    write_tokenizer(tmp_path)
    tokenizer = loaded(tmp_path)

    assert tokenizer.encode("<s>hi") == tokenizer.encode("hi")
    assert tokenizer.encode("hi").count(0) == 1
    assert tokenizer.encode("<s><s>hi").count(0) == 2


def test_an_empty_prompt_is_one_bos_or_nothing(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    """H09."""
    write_tokenizer(tmp_path / "with")
    write_tokenizer(tmp_path / "without", adds_bos=False)

    assert loaded(tmp_path / "with").encode("") == [0]
    assert loaded(tmp_path / "without").encode("") == []


def test_chats_are_refused_without_a_template_and_raw_prompts_work(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    """H03."""
    write_tokenizer(tmp_path)
    tokenizer = loaded(tmp_path)

    with pytest.raises(RequestError, match="chat template: the model has none"):
        tokenizer.encode_chat(MESSAGES)
    assert len(tokenizer.encode("hi")) == 3


def test_prompts_are_neither_cut_nor_padded() -> None:
    model: Any = models.WordLevel({"a": 0, "b": 1}, unk_token="a")
    backend = tokenizers.Tokenizer(model)
    splitter: Any = pre_tokenizers.Whitespace()
    backend.pre_tokenizer = splitter
    backend.enable_truncation(2)
    backend.enable_padding(length=5, pad_id=0)

    assert Tokenizer(backend).encode("b b b") == [1, 1, 1]
    assert Tokenizer(backend).encode("b") == [1]


@pytest.mark.parametrize("text", ["b", "\ud800"], ids=["no unknown token", "lone surrogate"])
def test_a_prompt_that_the_library_refuses_is_an_error_of_the_request(text: str) -> None:
    model: Any = models.WordLevel({"a": 0})

    with pytest.raises(RequestError, match=r"^the tokenizer refuses the text: .+"):
        Tokenizer(tokenizers.Tokenizer(model)).encode(text)


@pytest.mark.parametrize(
    ("name", "expected"), [("PanicException", RequestError), ("Interrupt", BaseException)]
)
def test_a_panic_is_an_error_of_the_request_and_an_interrupt_is_not(
    monkeypatch: pytest.MonkeyPatch, name: str, expected: type[BaseException]
) -> None:
    raised = type(name, (BaseException,), {})("out of range")

    class Backend:
        def encode(self, text: str, *, add_special_tokens: bool) -> None:
            raise raised

    tokenizer = byte_level()
    monkeypatch.setattr(tokenizer, "_backend", Backend())

    with pytest.raises(expected) as caught:
        tokenizer.encode("a")
    assert isinstance(caught.value, RequestError) == (name == "PanicException")


def test_a_text_that_the_library_has_no_memory_for_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tokenizer_module, "MAX_CHARACTERS", 5)
    tokenizer = byte_level()

    assert len(tokenizer.encode("hello")) == 5
    with pytest.raises(RequestError, match="the text has 6 characters; at most 5 are tokenized"):
        tokenizer.encode("hello!")
