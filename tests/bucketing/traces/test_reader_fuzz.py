"""Any bytes give a trace or a TraceError; and columns read at once are those read one by one."""

from __future__ import annotations

import io
from datetime import datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from noria.bucketing.traces.fields import read_fields, split_fields
from noria.bucketing.traces.kinds import (
    CACHED_TOKENS,
    COUNT,
    INSTANT,
    SECONDS,
    TOKENS,
    WORD,
    Kind,
)
from noria.bucketing.traces.readers import holds_prompts, is_trace, read_trace
from noria.bucketing.traces.trace import TraceError

HEADS = (
    b"",
    b"size,count\n",
    b"TIMESTAMP,ContextTokens,GeneratedTokens\n",
    b"prompt_len,output_len,arrival_s,prefix_len,weight\n",
    b"num_prefill_tokens,num_decode_tokens\n",
    b"window_start_s,field,tokens,expected_requests\n",
    b'{"timestamp": 0, "input_length": 5, "output_length": 5}\n',
    b'{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ',
    b'{"noria_counters": 1, "prompts": [[',
    b'{"noria_counters": 2, "engine": {"limits": {"',
    b'{"noria_counters": 1, "graphs": {"a": {"num_steps": ',
)
PIECES = st.sampled_from(
    [
        *(b"1", b"0", b"-", b".", b",", b"\n", b"\r", b'"', b" ", b"e", b"nan", b"\xff", b"\0"),
        *(b"2023-11-16 18:15:46", b"Z", b"+00:00", b":", b"input_tokens", b"output_tokens"),
        *(b"[", b"]", b"{", b"}", b"null", b"true", b"9999999999", b"1e400", b"\xef\xbb\xbf"),
        *(b"\x1f\x8b", b"\xc2\x85", b"\x0b", b"\\ud800", b"1" * 5000, b"[" * 990),
    ]
)
KINDS = {
    "tokens": TOKENS,
    "cached": CACHED_TOKENS,
    "count": COUNT,
    "seconds": SECONDS,
    "instant": INSTANT,
    "word": WORD,
}
NUMBERS = st.text("0123456789+-.eEZT: nai_", max_size=12)
NEAR_TIMES = st.builds(
    "{:04d}-{:02d}-{:02d}{}{:02d}:{:02d}:{:02d}{}{}".format,
    *(st.integers(1960, 2300), st.integers(0, 13), st.integers(0, 32), st.sampled_from(" TX")),
    *(st.integers(0, 25), st.integers(0, 61), st.integers(0, 61)),
    *(st.sampled_from(["", ".", ".5", ".1234567", ".000000001"]),),
    st.sampled_from(["", "Z", "+00:00", "+01:00", "-00:00"]),
)


@given(st.sampled_from(HEADS), st.lists(PIECES, max_size=20).map(b"".join))
@example(HEADS[1], b"5,1" + b"\n" * 9)
def test_any_bytes_give_a_trace_or_a_trace_error(head: bytes, rest: bytes) -> None:
    text = outcome(head + rest)

    assert text.startswith("t")
    assert text.isprintable()
    assert text.isascii()


def outcome(data: bytes) -> str:
    """Return the text of the error, or of what was read; other errors are not caught."""
    try:
        return f"trace of {read_trace(io.BytesIO(data), 't').num_requests} requests"
    except TraceError as error:
        return str(error)


@given(st.binary())
def test_telling_the_kind_of_a_file_never_fails(line: bytes) -> None:
    assert {holds_prompts(line), is_trace(line)} <= {True, False}


@pytest.mark.parametrize("name", KINDS)
@given(texts=st.lists(st.one_of(NUMBERS, NEAR_TIMES, st.integers(0).map(str)), min_size=1))
def test_columns_read_at_once_are_those_read_one_by_one(name: str, texts: list[str]) -> None:
    kind = KINDS[name]
    fields = split_fields("\n".join(f"{text},x" for text in texts).encode(), 2)
    assert fields is not None

    at_once = read_fields(fields[0], kind)

    if at_once is not None:
        assert at_once.tolist() == [one_by_one(kind, text) for text in texts]


def one_by_one(kind: Kind, text: str) -> object:
    value = kind.read(text)
    return value.encode() if isinstance(value, str) else value


PLAIN = {
    "tokens": st.integers(1, 2**31 - 1).map(str),
    "count": st.floats(0, 1e15).map(repr),
    "seconds": st.floats(-1e15, 1e15).map(repr),
    "instant": st.datetimes(datetime(1970, 1, 1), datetime(2261, 1, 1)).map(
        lambda moment: moment.isoformat(" ")
    ),
}


PRINTABLE = [chr(code) for code in range(32, 127) if chr(code) not in ',"']
WRITTEN = {
    "tokens": ["7", "2147483647"],
    "seconds": ["-1.5e+3"],
    "instant": ["2023-11-16 18:15:46", "2024-02-29T18:15:46.5Z", "2023-11-30 18:15:46.12+00:00"],
}


@pytest.mark.parametrize("name", WRITTEN)
def test_no_character_in_any_place_is_read_at_once_as_what_it_is_not(name: str) -> None:
    kind = KINDS[name]
    changed = [
        text[:place] + character + text[place + 1 :]
        for text in WRITTEN[name]
        for place in range(len(text))
        for character in PRINTABLE
    ]

    for text in changed:
        fields = split_fields(f"{text},x".encode(), 2)
        assert fields is not None
        at_once = read_fields(fields[0], kind)
        assert at_once is None or at_once.tolist() == [one_by_one(kind, text)], text


@pytest.mark.parametrize("end", ["\n", "\r\n"], ids=["newline", "carriage return"])
@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
def test_plain_columns_are_read_at_once(name: str, end: str, data: st.DataObject) -> None:
    texts = data.draw(st.lists(PLAIN[name], min_size=1))
    fields = split_fields(end.join(f"x,{text}" for text in texts).encode(), 2)
    assert fields is not None

    at_once = read_fields(fields[1], KINDS[name])

    assert at_once is not None
    assert at_once.tolist() == [KINDS[name].read(text) for text in texts]
