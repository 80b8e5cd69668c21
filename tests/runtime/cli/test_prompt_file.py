from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from noria.runtime.cli.failures import UserMistake
from noria.runtime.cli.prompt_file import PromptLine, read_prompts
from noria.runtime.conversation import Conversation
from noria.runtime.sampling_params import SamplingParams

PARAMS = SamplingParams(temperature=0, max_tokens=7)
USER = {"role": "user", "content": "b"}


def read(path: Path, data: bytes, *, chat: bool = False) -> list[PromptLine]:
    path.write_bytes(data)
    return read_prompts(path, PARAMS, chat=chat)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.txt"


@pytest.fixture
def json_file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def test_a04_a_byte_order_mark_is_dropped_from_any_line(json_file: Path) -> None:
    line = b'\xef\xbb\xbf{"prompt": "a"}\n'

    assert [line.request for line in read(json_file, line + line)] == ["a", "a"]


def test_a06_crlf_blank_lines_and_no_final_newline(text_file: Path) -> None:
    lines = read(text_file, b"one\r\n\r\n  \r\n two\r\nthree")

    assert [line.request for line in lines] == ["one", " two", "three"]
    assert [(line.index, line.number) for line in lines] == [(0, 1), (1, 4), (2, 5)]


def test_a_file_may_be_compressed(tmp_path: Path) -> None:
    data = gzip.compress(b'{"prompt": "a"}\n')

    assert [line.request for line in read(tmp_path / "prompts.jsonl.gz", data)] == ["a"]
    assert [line.request for line in read(tmp_path / "prompts.jsonl", data)] == ["a"]


def test_only_newlines_end_a_line(text_file: Path) -> None:
    text = "form\x0cfeed\u2028and\x85next"

    assert [line.request for line in read(text_file, text.encode())] == [text]


def test_a_line_that_is_not_utf8_fails_alone(text_file: Path) -> None:
    first, second = read(text_file, b"caf\xe9\ncaf\xc3\xa9\n")

    assert (first.request, first.error) == (None, "byte 3 is not UTF-8")
    assert (second.request, second.error) == ("caf\xe9", None)


def test_each_kind_of_request_is_read(json_file: Path) -> None:
    text, ids, chat = read(
        json_file,
        b'{"prompt": "a", "temperature": 0.5, "stop_token_ids": [3]}\n'
        b'{"prompt_token_ids": [1, 2], "seed": null}\n'
        b'{"messages": [{"role": "user", "content": "b"}], "top_k": 3}\n',
    )

    assert (text.prompt, text.request) == ("a", "a")
    assert text.params == SamplingParams(temperature=0.5, max_tokens=7, stop_token_ids=(3,))
    assert (ids.prompt, ids.request, ids.params) == (None, [1, 2], PARAMS)
    assert (chat.prompt, chat.request) == (None, Conversation([USER]))
    assert chat.params == SamplingParams(temperature=0, max_tokens=7, top_k=3)


def test_tools_stand_beside_messages(json_file: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    line = {"messages": [USER], "tools": [tool]}

    lines = [json.dumps(line | {"tools": tools}) for tools in ([tool], None)]

    with_tools, with_null = read(json_file, "\n".join(lines).encode())

    assert with_tools.request == Conversation([USER], [tool])
    assert with_null.request == Conversation([USER])


def test_every_sampling_setting_may_stand_in_a_line(json_file: Path) -> None:
    (line,) = read(
        json_file,
        b'{"prompt": "a", "n": 2, "min_p": 0.1, "repetition_penalty": 1.1, "stop": "b", '
        b'"logit_bias": {"5": 1, "6": -100}, "min_tokens": 3, "bad_words": ["c"], "logprobs": 0, '
        b'"bad_word_ids": [[1, 2]], "structured_output": {"choice": ["d", "e"]}}\n',
    )

    assert line.error is None
    assert line.params == SamplingParams(
        temperature=0,
        max_tokens=7,
        n=2,
        min_p=0.1,
        repetition_penalty=1.1,
        stop=("b",),
        logit_bias={5: 1, 6: -100},
        min_tokens=3,
        bad_words=("c",),
        bad_word_ids=((1, 2),),
        logprobs=0,
        structured_output={"choice": ["d", "e"]},
    )


def test_a_line_may_have_a_priority(json_file: Path) -> None:
    lines = read(json_file, b'{"prompt": "a", "priority": -3}\n{"prompt": "b"}\n')

    assert [line.priority for line in lines] == [-3, 0]


def test_chat_wraps_texts_only(json_file: Path) -> None:
    text, ids = read(json_file, b'{"prompt": "a"}\n{"prompt_token_ids": [1]}\n', chat=True)

    assert (text.prompt, text.request) == ("a", Conversation([{"role": "user", "content": "a"}]))
    assert ids.request == [1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("[1]", 'is a list; must be an object like {"prompt": "..."}'),
        ('"a"', 'is a string; must be an object like {"prompt": "..."}'),
        ("null", 'is null; must be an object like {"prompt": "..."}'),
        ("3", 'is a number; must be an object like {"prompt": "..."}'),
        ('{"prompt": "a"', "is not JSON: Expecting ',' delimiter: line 1 column 15 (char 14)"),
        ("[" * 100_000, "is not JSON: "),
        ('{"prompt": "a", "prompt": "b"}', "prompt: written twice; keep one"),
        ('{"prompt": "a", "max_token": 1}', "max_token: unknown key; did you mean max_tokens?"),
        ('{"prompt": "a", "q": 2}', "q: unknown key; the keys are prompt, "),
        ('{"prompt": "a", "n": 0}', "n is 0 (int); it must be an integer in 1 .. 16384"),
        ('{"prompt": "a", "logit_bias": {"a": 1}}', "logit_bias is 'a' (str); it must be a map"),
        ('{"prompt": "a", "stop": [""]}', "stop is '' (str); it must hold texts that are not e"),
        ("{}", "one of prompt, prompt_token_ids, messages is needed; there is none of them"),
        ('{"prompt": "a", "messages": []}', "there is prompt and messages"),
        ('{"prompt": 3}', "prompt is a number; must be a string"),
        ('{"prompt": null}', "prompt is null; must be a string"),
        ('{"prompt_token_ids": "12"}', "prompt_token_ids is a string; must be a list, each an in"),
        ('{"prompt_token_ids": []}', "prompt_token_ids is an empty list; must be a list, each"),
        ('{"prompt_token_ids": [1, true]}', "prompt_token_ids[1] is true or false; must be an int"),
        ('{"prompt_token_ids": [1.0]}', "prompt_token_ids[0] is a number; must be an integer"),
        ('{"messages": ["a"]}', "messages[0] is a string; must be an object"),
        ('{"messages": [{}], "tools": {}}', "tools is an object; must be a list, each an object"),
        ('{"messages": [{}], "tools": []}', "tools is an empty list; must be a list"),
        ('{"messages": [{}], "tools": [{}, 1]}', "tools[1] is a number; must be an object"),
        ('{"prompt": "a", "tools": [{}]}', "tools: goes with messages, not with prompt"),
        ('{"messages": []}', "messages is an empty list; must be a list, each an object"),
        ('{"prompt": "a", "temperature": NaN}', "temperature is nan (float)"),
        ('{"prompt": "a", "temperature": null}', "temperature is None (NoneType)"),
        ('{"prompt": "a", "max_tokens": 0}', "max_tokens is 0 (int)"),
        ('{"prompt": "a", "stop_token_ids": 3}', "stop_token_ids is a number; must be a list"),
        ('{"prompt": "a", "stop_token_ids": ["b"]}', "stop_token_ids is 'b' (str)"),
        ('{"prompt": "a", "priority": 1.0}', "priority is a number; must be an integer"),
        ('{"prompt": "a", "priority": null}', "priority is null; must be an integer"),
        ('{"prompt": "a", "priority": true}', "priority is true or false; must be an integer"),
        ('{"prompt": "\\ud800"}', "holds half of a surrogate pair, which is no character"),
    ],
    ids=lambda value: value[:30],
)
def test_a01_a03_what_is_wrong_with_a_line_is_its_own_error(
    json_file: Path, line: str, error: str
) -> None:
    good = b'{"prompt": "good"}\n'

    before, bad, after = read(json_file, good + line.encode() + b"\n" + good)

    assert (before.request, after.request) == ("good", "good")
    assert bad.request is None
    assert bad.error is not None
    assert error in bad.error


def test_the_prompt_of_a_refused_line_is_kept_for_its_record(json_file: Path) -> None:
    (line,) = read(json_file, b'{"prompt": "a", "top_p": 0}\n')

    assert (line.prompt, line.request) == ("a", None)


def test_a_suffix_in_capitals_means_the_same(tmp_path: Path) -> None:
    (line,) = read(tmp_path / "PROMPTS.JSONL", b'{"prompt": "a"}\n')

    assert line.request == "a"
    with pytest.raises(UserMistake, match="text or JSON lines"):
        read(tmp_path / "PROMPTS.JSON", b'["a"]\n')
