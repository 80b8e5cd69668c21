"""Prompts and batch requests become traces by a tokenizer; what cannot run is counted."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from noria.bucketing.traces.trace import Trace
from noria.runtime.cli.failures import UserMistake
from noria.runtime.cli.prompt_file import Prompt
from noria.runtime.cli.traffic import TokenIds, read_traffic
from noria.runtime.conversation import Conversation
from noria.runtime.errors import NoriaError, RequestError
from noria.runtime.sampling_params import SamplingParams

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
PARAMS = SamplingParams()
CHAT_EXTRA = 10
"""Tokens of the template of the tokenizer below."""


def words(prompt: Prompt) -> Sequence[int]:
    """Tokenize: a token for each word, and some for a conversation."""
    if isinstance(prompt, Conversation):
        texts = [str(message["content"]) for message in prompt.messages]
        return [0] * (len(" ".join(texts).split()) + CHAT_EXTRA)
    if not isinstance(prompt, str):
        return prompt
    if "forbidden" in prompt:
        raise RequestError("the tokenizer refuses the text")
    return [0] * len(prompt.split())


def read(path: Path, *lines: object, params: SamplingParams = PARAMS, chat: bool = False) -> Trace:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    path.write_text("".join(f"{text}\n" for text in texts))
    return read_traffic(path, lambda: words, params, chat=chat)


def batch(**body: object) -> dict[str, object]:
    return {"custom_id": "a", "method": "POST", "url": "/v1/x", "body": {"model": "m", **body}}


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    return tmp_path / "requests.jsonl"


def test_texts_are_counted_by_the_tokenizer(tmp_path: Path) -> None:
    trace = read(tmp_path / "prompts.txt", "one two three", "", "four")

    assert trace.prompt_lens.tolist() == [3, 1]
    assert (trace.output_lens, trace.arrivals_s) == (None, None)


def test_texts_of_a_chat_are_counted_with_its_template(tmp_path: Path) -> None:
    trace = read(tmp_path / "prompts.txt", "one two three", chat=True)

    assert trace.prompt_lens.tolist() == [3 + CHAT_EXTRA]


def test_json_prompts_of_every_kind_are_counted(lines: Path) -> None:
    trace = read(
        lines,
        {"prompt": "one two", "max_tokens": 4},
        {"prompt_token_ids": [5, 6, 7], "max_tokens": 5},
        {"messages": [{"role": "user", "content": "one"}], "max_tokens": 6},
    )

    assert trace.prompt_lens.tolist() == [2, 3, 1 + CHAT_EXTRA]
    assert trace.output_lens is not None
    assert trace.output_lens.tolist() == [4, 5, 6]
    assert "outputs are taken to be as long as max_tokens allows" in trace.warnings


def test_batch_requests_of_every_kind_are_counted(lines: Path) -> None:
    trace = read(
        lines,
        batch(messages=[{"role": "user", "content": "one"}], max_completion_tokens=3, seed=1),
        batch(prompt="one two", max_tokens=4),
        batch(prompt=["one", "one two three"], max_tokens=5),
        batch(prompt=[7, 8, 9, 9], max_tokens=6),
        batch(prompt=[[7], [8, 9]], max_tokens=7),
    )

    assert trace.prompt_lens.tolist() == [1 + CHAT_EXTRA, 2, 1, 3, 4, 1, 2]
    assert trace.output_lens is not None
    assert trace.output_lens.tolist() == [3, 4, 5, 5, 6, 7, 7]


def test_a_limit_of_all_prompts_counts_where_they_have_none(lines: Path) -> None:
    trace = read(lines, batch(prompt="one"), params=SamplingParams(max_tokens=9))

    assert trace.output_lens is not None
    assert trace.output_lens.tolist() == [9]


def test_one_prompt_without_a_limit_leaves_outputs_unknown(lines: Path) -> None:
    trace = read(lines, batch(prompt="one", max_tokens=4), batch(prompt="one"))

    assert trace.output_lens is None
    assert trace.warnings[0] == ("1 of 2 prompts have no max_tokens, so no output length is known")


def test_a_limit_beyond_any_fits_a_trace(lines: Path) -> None:
    trace = read(lines, batch(prompt="one", max_tokens=10**30))

    assert trace.output_lens is not None
    assert trace.output_lens.tolist() == [2**31 - 1]


def test_several_outputs_of_a_prompt_are_named(lines: Path) -> None:
    trace = read(lines, batch(prompt="one", n=3), {"body": {"prompt": "one"}})

    assert "1 prompts ask for several outputs; one of each is counted" in trace.warnings


def test_prompts_that_cannot_run_are_counted_and_the_first_is_named(lines: Path) -> None:
    bad = [
        *(batch(prompt="one", max_tokens=0), batch(input="one"), batch(prompt=[])),
        *(batch(prompt=["one", 2]), batch(prompt=[[1], [True]]), batch(messages="hello")),
        *(batch(prompt="a forbidden word"), batch(prompt="  "), {"body": 7}, "{", "[]"),
    ]

    trace = read(lines, batch(prompt="one"), *bad)

    assert trace.prompt_lens.tolist() == [1]
    assert trace.warnings[0].startswith(
        "11 of 12 prompts cannot run and are left out, the first on line 2: max_tokens is 0"
    )


def test_a_file_of_which_no_prompt_can_run_is_refused(lines: Path) -> None:
    with pytest.raises(UserMistake) as caught:
        read(lines, batch(prompt="  "), batch(prompt=" "))

    expected = f"{lines}, line 1: the prompt has no tokens; no other prompt can run"
    assert caught.value.message == expected


def test_gzip_is_told_by_content(tmp_path: Path) -> None:
    packed, named = tmp_path / "prompts.jsonl", tmp_path / "prompts.txt.gz"
    packed.write_bytes(gzip.compress(b'{"prompt": "one two"}\n'))
    named.write_bytes(gzip.compress(b"one two three\n"))

    found = [read_traffic(path, lambda: words, PARAMS) for path in (packed, named)]

    assert [trace.prompt_lens.tolist() for trace in found] == [[2], [3]]


def test_a_prompt_file_that_is_cut_short_is_named(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt.gz"
    path.write_bytes(gzip.compress(b"one two three\n")[:-5])

    with pytest.raises(NoriaError, match="the gzip file is cut short"):
        read_traffic(path, lambda: words, PARAMS)


def test_traces_need_no_tokenizer(tmp_path: Path) -> None:
    def refuse() -> TokenIds:
        raise AssertionError("no tokenizer is needed")

    path = tmp_path / "trace.txt"
    path.write_text("size,count\n5,1\n")

    assert read_traffic(path, refuse, PARAMS).prompt_lens.tolist() == [5]


@pytest.mark.parametrize("name", ["prompts.txt", "trace.csv"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(NoriaError, match="is empty"):
        read(tmp_path / name)


def test_equal_counts_have_equal_digests_and_others_have_others(lines: Path) -> None:
    same = [read(lines, batch(prompt=text)).sha256 for text in ("one", "two")]

    assert same[0] == same[1] != read(lines, batch(prompt="one two")).sha256


def test_the_examples_are_traffic() -> None:
    texts, requests = (
        read_traffic(EXAMPLES / name, lambda: words, PARAMS)
        for name in ("prompts.txt", "requests.jsonl")
    )

    assert len(texts.prompt_lens) == len((EXAMPLES / "prompts.txt").read_text().splitlines())
    assert len(requests.prompt_lens) == len((EXAMPLES / "requests.jsonl").read_text().splitlines())
