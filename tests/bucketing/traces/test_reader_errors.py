"""What is no trace is refused in one line that names the source, the line and what would fit."""

from __future__ import annotations

import io
import json

import pytest

from noria.bucketing.traces.readers import read_trace
from noria.bucketing.traces.trace import TraceError

AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n"
TIME = b"2023-11-16 18:15:46.6805900"
GOOD = AZURE + TIME + b",374,44\n"
WINDOW = b"window_start_s,field,tokens,expected_requests\n"
TOKENS = "must be a whole number of tokens, from 1 to 2147483647"
A_TIME = "must be a time such as 2023-11-16 18:15:46.6805900"
SECONDS = "must be a number of seconds"
COUNT = "must be a number that is not negative"
INTEGER = "must be an integer from 1 to 2147483647"
FORM = "must be an object with timestamp, input_length, output_length and maybe hash_ids"
HASHES = "must be a list of integers"


def mooncake(**changes: object) -> bytes:
    """Write a good line and a changed one; a value of ... takes a key out."""
    record = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
    changed = {k: v for k, v in {**record, **changes}.items() if v is not ...}
    return f"{json.dumps(record)}\n{json.dumps(changed)}\n".encode()


def counters(**parts: object) -> bytes:
    return json.dumps({"noria_counters": 1, "prompts": [[5, 2, 1]], **parts}).encode()


def graphs(**counts: object) -> bytes:
    good = {"num_steps": 1, "real_tokens": 1, "padded_tokens": 1, "seconds": 0.5}
    return counters(graphs={"decode 4 x 64": {**good, **counts}})


EMPTY = "is empty; a trace has at least one request"
CASES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", f": {EMPTY}"),
    "blank": (b"\xef\xbb\xbf\r\n \t\n", f": {EMPTY}"),
    "binary": (b"size\n\x00\x01", ", line 2: holds a zero byte, so it is no text"),
    "not UTF-8": (b"size,count\n5,1\n\xff,1", ", line 3: is no UTF-8 text"),
    "header only": (
        AZURE,
        ", line 1: has a header and no row; a trace has at least one request",
    ),
    "missing column": (
        b"\nTIMESTAMP,ContextTokens\n1,2\n",
        ", line 2: column GeneratedTokens is missing; Azure LLM "
        "(TIMESTAMP,ContextTokens,GeneratedTokens)",
    ),
    "column twice": (b"size,count,size\n1,1,1", ", line 1: column size stands there twice"),
    "short row": (GOOD + TIME + b",374\n", ", line 3: has 2 columns; the header has 3"),
    "long row": (GOOD + TIME + b",3,7,4\n", ", line 3: has 4 columns; the header has 3"),
    "commas moved to the next row": (
        b"size,count\n1,2,3\n1\n",
        ", line 2: has 3 columns; the header has 2",
    ),
    "columns moved to the next row beside those that are read": (
        b"a,b,size,count,c\n1,2,3,4,5,6\n7,8,9,9\n",
        ", line 2: has 6 columns; the header has 5",
    ),
    "a quoted comma for one between columns": (
        b'a,b,size,count\n"1,2",3,4\n',
        ", line 2: has 3 columns; the header has 4",
    ),
    "negative": (
        GOOD + TIME + b",-374,44\n",
        f", line 3: ContextTokens is '-374'; {TOKENS}",
    ),
    "zero": (GOOD + TIME + b",374,0\n", f", line 3: GeneratedTokens is '0'; {TOKENS}"),
    "NaN": (GOOD + TIME + b",nan,44\n", f", line 3: ContextTokens is 'nan'; {TOKENS}"),
    "infinite": (GOOD + TIME + b",inf,44\n", f", line 3: ContextTokens is 'inf'; {TOKENS}"),
    "nothing": (GOOD + TIME + b",,44\n", f", line 3: ContextTokens is ''; {TOKENS}"),
    "no integer": (GOOD + TIME + b",3.5,44\n", f", line 3: ContextTokens is '3.5'; {TOKENS}"),
    "no number": (GOOD + TIME + b",3x5,44\n", f", line 3: ContextTokens is '3x5'; {TOKENS}"),
    "hexadecimal": (GOOD + TIME + b",0x5,44\n", f", line 3: ContextTokens is '0x5'; {TOKENS}"),
    "underscores": (GOOD + TIME + b",1_0,44\n", f", line 3: ContextTokens is '1_0'; {TOKENS}"),
    "too large": (
        GOOD + TIME + b",2147483648,44\n",
        f", line 3: ContextTokens is '2147483648'; {TOKENS}",
    ),
    "far too large": (
        GOOD + TIME + b"," + b"9" * 400 + b",44\n",
        f", line 3: ContextTokens is '{'9' * 56}...; {TOKENS}",
    ),
    "the first of several": (
        GOOD + TIME + b",1,0\n" + TIME + b",x,1\n",
        f", line 3: GeneratedTokens is '0'; {TOKENS}",
    ),
    "behind blank lines": (
        GOOD + b"\n\n" + TIME + b",0,1\n",
        f", line 5: ContextTokens is '0'; {TOKENS}",
    ),
    "bad time": (GOOD + b"yesterday,3,4\n", f", line 3: TIMESTAMP is 'yesterday'; {A_TIME}"),
    "time of no day": (
        GOOD + b"2023-02-29 00:00:00,3,4\n",
        f", line 3: TIMESTAMP is '2023-02-29 00:00:00'; {A_TIME}",
    ),
    "hour 24": (
        GOOD + b"2023-02-28 24:00:00,3,4\n",
        f", line 3: TIMESTAMP is '2023-02-28 24:00:00'; {A_TIME}",
    ),
    "seconds for a time": (GOOD + b"17.5,3,4\n", f", line 3: TIMESTAMP is '17.5'; {A_TIME}"),
    "time beyond nanoseconds": (
        GOOD + b"2300-01-01 00:00:00,3,4\n",
        f", line 3: TIMESTAMP is '2300-01-01 00:00:00'; {A_TIME}",
    ),
    "dot without digits": (
        GOOD + b"2023-02-28 00:00:00.,3,4\n",
        f", line 3: TIMESTAMP is '2023-02-28 00:00:00.'; {A_TIME}",
    ),
    "arrival NaN": (
        b"prompt_len,arrival_s\n1,0\n1,nan\n",
        f", line 3: arrival_s is 'nan'; {SECONDS}",
    ),
    "prefix as long as its prompt": (
        b"prompt_len,prefix_len\n5,4\n5,5\n",
        ", line 3: the prefix has 5 tokens; must be below the prompt's 5",
    ),
    "behind blank lines before the header": (
        b"\n\nprompt_len,prefix_len\n5,4\n5,5\n",
        ", line 5: the prefix has 5 tokens; must be below the prompt's 5",
    ),
    "lines without line feeds": (
        b"size,count\r5,1\r",
        ", line 1: ends its lines with carriage returns alone; must be line feeds",
    ),
    "negative count": (b"size,count\n5,-1\n", f", line 2: count is '-1'; {COUNT}"),
    "count NaN": (b"size,count\n5,NaN\n", f", line 2: count is 'NaN'; {COUNT}"),
    "all counts 0": (
        b"size,count\n5,0\n7,0.0\n",
        ": every count is 0; a trace has at least one request",
    ),
    "unknown field": (
        WINDOW + b"0,input_tokens,5,1\n0,tokens,5,1\n",
        ", line 3: field is 'tokens'; must be input_tokens or output_tokens",
    ),
    "prompt of a window without tokens": (
        WINDOW + b"0,output_tokens,0,1\n0,input_tokens,0,1\n",
        ", line 3: tokens is 0; must be at least 1 for a prompt",
    ),
    "windows without prompts": (
        WINDOW + b"0,output_tokens,5,1\n",
        ": no row is of field input_tokens; a trace has at least one prompt",
    ),
    "bad JSON": (
        mooncake() + b'{"timestamp": 0,}\n',
        ", line 3: is no JSON: Expecting property name enclosed in double quotes, column 17",
    ),
    "list for an object": (mooncake() + b"[1, 2]\n", f", line 3: is [1, 2]; {FORM}"),
    "nested too deep": (
        b'{"timestamp":' + b"[" * 100_000 + b"\n",
        ", line 1: is nested too deep",
    ),
    "too many digits": (
        b'{"timestamp":' + b"1" * 5_000 + b"}\n",
        ", line 1: holds a number of too many digits",
    ),
    "missing key": (
        mooncake(output_length=...),
        f", line 2: output_length is missing; {FORM}",
    ),
    "negative length": (
        mooncake(input_length=-3),
        f", line 2: input_length is -3; {INTEGER}",
    ),
    "zero length": (mooncake(output_length=0), f", line 2: output_length is 0; {INTEGER}"),
    "length NaN": (
        mooncake(input_length=float("nan")),
        f", line 2: input_length is nan; {INTEGER}",
    ),
    "length true": (mooncake(input_length=True), f", line 2: input_length is True; {INTEGER}"),
    "time NaN": (
        mooncake(timestamp=float("nan")),
        ", line 2: timestamp is nan; must be milliseconds",
    ),
    "time in text": (
        mooncake(timestamp="0"),
        ", line 2: timestamp is '0'; must be milliseconds",
    ),
    "hashes of something": (
        mooncake(hash_ids=[0, [1]]),
        f", line 2: hash_ids is [0, [1]]; {HASHES}",
    ),
    "hashes in some lines only": (
        mooncake(hash_ids=...),
        ", line 2: hash_ids is missing, which other lines have",
    ),
    "prompts": (
        b'{"prompt": "Why?"}\n',
        ", line 1: holds texts, whose tokens only the tokenizer of a model can count",
    ),
    "counters of another version": (
        b'{"noria_counters": 3}',
        ": noria_counters is 3; must be 2, or 1 as older ones are",
    ),
    "counters of no version": (
        b'{"noria_counters": true}',
        ": noria_counters is True; must be 2, or 1 as older ones are",
    ),
    "counters cut short": (
        b'{"noria_counters": 1,\n"prompts": [',
        ", line 2: is no JSON: Expecting value, column 13",
    ),
    "counters without requests": (
        counters(prompts=[]),
        ": prompts is empty; a trace has at least one request",
    ),
    "counters that are no rows": (
        counters(decode=7),
        ": decode is 7; must be a list of [num_seqs, context_need, num_steps]",
    ),
    "counters of a short row": (
        counters(prompts=[[5, 2, 1], [5, 2]]),
        ": prompts[1] is [5, 2]; must be [prompt_len, output_len, count]",
    ),
    "counters of no length": (
        counters(prompts=[[5, 0, 1]]),
        f": prompts[0]: output_len is 0; {INTEGER}",
    ),
    "counters of a fraction": (
        counters(prefill=[[5, 0, 1.5, 1]]),
        f": prefill[0]: num_steps is 1.5; {INTEGER}",
    ),
    "counters of a graph": (
        graphs(seconds=-1),
        f": graphs: 'decode 4 x 64': seconds is -1; {COUNT}",
    ),
    "counters of a graph that never ends": (
        graphs(seconds=float("inf")),
        f": graphs: 'decode 4 x 64': seconds is inf; {COUNT}",
    ),
    "counters of graphs in a list": (counters(graphs=[]), ": graphs is []; must be an object"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_named_with_its_line(name: str) -> None:
    data, expected = CASES[name]

    with pytest.raises(TraceError) as caught:
        read_trace(io.BytesIO(data), "t.csv")

    assert str(caught.value) == f"t.csv{expected}"


@pytest.mark.parametrize("end", [b"\n", b"\r\n"], ids=["newline", "carriage return"])
def test_the_last_of_many_lines_is_found(end: bytes) -> None:
    lines = [AZURE.strip(), *[TIME + b",374,44"] * 40_000, TIME + b",374,44x"]

    with pytest.raises(TraceError, match=r"^t, line 40002: GeneratedTokens is '44x'; "):
        read_trace(io.BytesIO(end.join(lines)), "t")


def test_an_unknown_format_lists_what_is_known() -> None:
    with pytest.raises(TraceError) as caught:
        read_trace(io.BytesIO(b"when,how much\n1,2\n"), "t.csv")

    text = str(caught.value)
    assert text.startswith("t.csv, line 1: 'when,how much' begins no known trace; known are CSV: ")
    for known in (
        "requests (prompt_len[,output_len][,arrival_s][,prefix_len][,weight])",
        "Azure LLM (TIMESTAMP,ContextTokens,GeneratedTokens)",
        "Vidur lengths (num_prefill_tokens,num_decode_tokens[,arrived_at])",
        "histogram (size,count)",
        "ServeGen windows (window_start_s,field,tokens,expected_requests)",
        "Mooncake JSON lines (timestamp, input_length, output_length, hash_ids)",
        "noria counters",
    ):
        assert known in text
