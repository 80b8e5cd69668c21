from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from noria.runtime.errors import ModelError
from noria.runtime.models.tokenizer import Tokenizer
from noria.runtime.models.tokenizer_files import load_tokenizer

MESSAGES = [{"role": "user", "content": "hi"}]
WriteTokenizer = Callable[..., None]


def loaded(folder: Path) -> Tokenizer:
    tokenizer = load_tokenizer(folder)
    assert tokenizer is not None
    return tokenizer


def test_ids_and_template_come_from_the_files(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    write_tokenizer(tmp_path, chat_template="{{ eos_token }}{{ messages[0].content }}")

    tokenizer = loaded(tmp_path)

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)
    assert tokenizer.vocab_size == 258
    assert tokenizer.render_chat(MESSAGES) == "</s>hi"
    assert tokenizer.decode([0, *tokenizer.encode("hi"), 1]) == "hi"
    assert tokenizer.is_special(1)


def test_without_a_config_the_bos_is_what_the_tokenizer_adds(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    """H01: the rule of the single bos needs to know it."""
    write_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()

    tokenizer = loaded(tmp_path)

    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, None)
    assert tokenizer.encode("<s>hi").count(0) == 1


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("flag", [True, False])
def test_the_tokenizer_file_decides_about_bos(
    tmp_path: Path, write_tokenizer: WriteTokenizer, in_file: bool, flag: bool
) -> None:
    """H02: as in transformers, whatever ``add_bos_token`` says."""
    transformers: Any = pytest.importorskip("transformers")
    write_tokenizer(tmp_path, adds_bos=in_file, add_bos_token=flag)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)

    ids = loaded(tmp_path).encode("hi there")

    assert ids == theirs("hi there")["input_ids"]
    assert ids.count(0) == int(in_file)


def test_a_template_file_comes_before_the_one_in_the_config(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    write_tokenizer(tmp_path, chat_template="config")
    (tmp_path / "chat_template.jinja").write_text("file {{ bos_token }}")

    assert loaded(tmp_path).render_chat(MESSAGES) == "file <s>"


def test_a_file_of_its_own_is_the_template_of_requests_with_tools(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("plain")
    more = tmp_path / "additional_chat_templates"
    more.mkdir()
    (more / "tool_use.jinja").write_text("{{ tools[0].name }}")

    assert loaded(tmp_path).render_chat(MESSAGES) == "plain"
    assert loaded(tmp_path).render_chat(MESSAGES, [{"name": "f"}]) == "f"


def test_of_a_list_of_templates_the_default_is_taken(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    named = [
        {"name": "tool_use", "template": "{{ tools[0].name }}"},
        {"name": "default", "template": "plain"},
    ]
    write_tokenizer(tmp_path / "both", chat_template=named)
    write_tokenizer(tmp_path / "one", chat_template=named[:1])

    assert loaded(tmp_path / "both").render_chat(MESSAGES) == "plain"
    assert loaded(tmp_path / "both").render_chat(MESSAGES, [{"name": "f"}]) == "f"
    assert loaded(tmp_path / "one").chat_template is None


def test_a_folder_without_tokenizer_files_has_no_tokenizer(tmp_path: Path) -> None:
    assert load_tokenizer(tmp_path) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")

    with pytest.raises(ModelError, match=r"tokenizer\.json: not a readable tokenizer"):
        load_tokenizer(tmp_path)


def test_templates_whose_names_are_no_text_are_passed_over(
    tmp_path: Path, write_tokenizer: WriteTokenizer
) -> None:
    named = [{"name": name, "template": "no"} for name in ([], {}, None, 7)]
    write_tokenizer(tmp_path, chat_template=[{"name": "default", "template": "yes"}, *named])

    assert loaded(tmp_path).render_chat(MESSAGES) == "yes"


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "tokenizer.json"])
def test_a_file_that_is_not_utf8_is_named(
    tmp_path: Path, write_tokenizer: WriteTokenizer, name: str
) -> None:
    write_tokenizer(tmp_path)
    (tmp_path / name).write_bytes('{"bos_token": "caf\xe9"}'.encode("latin-1"))

    with pytest.raises(ModelError, match=name) as caught:
        load_tokenizer(tmp_path)

    assert "\n" not in str(caught.value)


def test_older_files_are_read_through_transformers(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    vocab = {"<|endoftext|>": 0, "h": 1, "i": 2, "hi": 3}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh i\n")
    config = {"tokenizer_class": "GPT2Tokenizer", "eos_token": "<|endoftext|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))

    tokenizer = loaded(tmp_path)

    assert tokenizer.encode("hi") == [3]
    assert tokenizer.eos_token_id == 0


def test_older_files_without_transformers_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(ModelError, match=r"has tokenizer\.model .*pip install transformers"):
        load_tokenizer(tmp_path)
