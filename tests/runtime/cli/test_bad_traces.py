"""Traces with a fault, through ``noria plan``: one clear error with its line, or a stated note."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from plan_commands import run

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens"
ROWS = [f"2023-11-16 18:00:{at:02d}.0000000,{20 + at},{1 + at % 5}" for at in range(30)]
COUNTERS = {
    "noria_counters": 1,
    "prefill": [[40, 40, 9, 9]],
    "decode": [[3, 50, 40]],
    "prompts": [[40, 5, 9]],
}
JSON_LINES = [
    json.dumps({"timestamp": 100 * at, "input_length": 20 + at, "output_length": 3})
    for at in range(30)
]
LENS = "must be a whole number of tokens, from 1 to 2147483647"


def azure(*more: str, at: int = 3, end: str = "\n") -> bytes:
    """Return a trace in which some lines are put in; ``at`` 3 makes the first of them line 5."""
    return end.join([HEADER, *ROWS[:at], *more, *ROWS[at:]]).encode()


def mooncake(*more: str, end: str = "\n") -> bytes:
    return end.join([*JSON_LINES[:3], *more, *JSON_LINES[3:]]).encode()


def zipped(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


ERRORS: dict[str, tuple[str, bytes, str]] = {
    "empty": ("t.csv", b"", ": is empty; a trace has at least one request"),
    "blank": ("t.csv", b"\n \r\n\n", ": is empty; a trace has at least one request"),
    "no rows": ("t.csv", f"{HEADER}\n".encode(), ", line 1: has a header and no row; "),
    "negative": (
        "t.csv",
        azure(f"{ROWS[2][:27]},-5,3"),
        f", line 5: ContextTokens is '-5'; {LENS}",
    ),
    "NaN": ("t.csv", azure(f"{ROWS[2][:27]},5,nan"), f", line 5: GeneratedTokens is 'nan'; {LENS}"),
    "NaN time": (
        "t.csv",
        azure("nan,5,3"),
        ", line 5: TIMESTAMP is 'nan'; must be a time such as ",
    ),
    "wrong columns": ("t.csv", b"a,b\n1,2\n", ", line 1: 'a,b' begins no known trace; known are "),
    "few columns": ("t.csv", azure("7,5"), ", line 5: has 2 columns; the header has 3"),
    "many columns": ("t.csv", azure("7,5,3,1"), ", line 5: has 4 columns; the header has 3"),
    "no count": ("t.csv", b"size,count\n5,0\n", ": every count is 0; a trace has at least one"),
    "no count at all": ("t.csv", b"size,count\n5,nan\n", ", line 2: count is 'nan'; must be a num"),
    "cut gzip": ("t.csv.gz", zipped(azure())[:60], ": the gzip file is cut short"),
    "gzip without an end": ("t.csv.gz", zipped(azure())[:-4], ": the gzip file is cut short"),
    "damaged gzip": ("t.csv.gz", zipped(azure())[:-8] + b"\1" * 8, ": the gzip file is damaged: "),
    "no text": (
        "t.csv",
        azure().decode().encode("utf-16"),
        ", line 1: holds a zero byte, so it is",
    ),
    "no UTF-8": ("t.csv", azure("\u00e9").decode().encode("latin-1"), ", line 5: is no UTF-8 text"),
    "lone returns": (
        "t.csv",
        azure(end="\r"),
        ", line 1: ends its lines with carriage returns alone",
    ),
    "cut JSON": (
        "t.jsonl",
        mooncake('{"timestamp": 5'),
        ", line 4: is no JSON: Expecting ',' delimi",
    ),
    "negative JSON": (
        "t.jsonl",
        mooncake('{"timestamp": 5, "input_length": -1, "output_length": 3}'),
        ", line 4: input_length is -1; must be an integer from 1 to 2147483647",
    ),
    "NaN in JSON": (
        "t.jsonl",
        mooncake('{"timestamp": NaN, "input_length": 5, "output_length": 3}'),
        ", line 4: timestamp is nan; must be milliseconds",
    ),
    "wrong keys": (
        "t.jsonl",
        mooncake('{"timestamp": 5, "tokens": 3}'),
        ", line 4: input_length is missing; must be an object with ",
    ),
    "cut counters": (
        "t.json",
        json.dumps(COUNTERS, indent=1).encode()[:60],
        ", line 7: is no JSON: ",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_a_trace_that_cannot_be_used_is_one_error(folder: Path, name: str) -> None:
    file, data, message = ERRORS[name]
    (folder / file).write_bytes(data)

    found = run("plan", "config.yaml", "--trace", file, "-o", "plan.yaml")

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"Error: {file}{message}")
    assert found.stderr.count("\n") == 1
    assert not (folder / "plan.yaml").exists()


FEW = "only {} requests, so that a plan may miss its optimum for others like them"
OUTLIER = "2023-11-16 18:00:02.5,{},3"
NOTES: dict[str, tuple[str, bytes, list[str]]] = {
    "nothing odd": ("t.csv", azure(), [FEW.format(30)]),
    "only 10 requests": ("t.csv", "\n".join([HEADER, *ROWS[:10]]).encode(), [FEW.format(10)]),
    "one request": ("t.csv", "\n".join([HEADER, ROWS[0]]).encode(), ["only 1 request, so that"]),
    "times that fall": (
        "t.csv",
        "\n".join([HEADER, *reversed(ROWS)]).encode(),
        [
            "times are not in order: 29 of 30 rows are earlier than the row before, the first on "
            "line 3; the rows were sorted by time",
            FEW.format(30),
        ],
    ),
    "an outlier beyond the limit": (
        "t.csv",
        azure(OUTLIER.format(100_000)),
        ["1 of 31 requests (3.23%) have prompts of more than the 255 tokens that", FEW.format(30)],
    ),
    "an outlier that fits": (
        "t.csv",
        b"prompt_len,output_len\n" + b"9,3\n" * 40 + b"250,3\n",
        [FEW.format(41), "the longest prompt has 250 tokens, more than 10 times the 99.9th "],
    ),
    "a byte order mark": ("t.csv", b"\xef\xbb\xbf" + azure(), [FEW.format(30)]),
    "a byte order mark in JSON lines": ("t.jsonl", b"\xef\xbb\xbf" + mooncake(), [FEW.format(30)]),
    "line ends of Windows": ("t.csv", azure(end="\r\n"), [FEW.format(30)]),
    "line ends of Windows in JSON lines": ("t.jsonl", mooncake(end="\r\n"), [FEW.format(30)]),
    "both, compressed": (
        "t.csv.gz",
        zipped(b"\xef\xbb\xbf" + azure(end="\r\n")),
        [FEW.format(30)],
    ),
    "counters with a byte order mark": (
        "t.json",
        b"\xef\xbb\xbf" + json.dumps(COUNTERS, indent=1).replace("\n", "\r\n").encode(),
        ["only 9 requests, so that"],
    ),
}
OWN = ("nothing was measured", "seconds are", "these are the steps", "the counters do not say")
"""How notes begin that are not about what is odd of a trace."""


@pytest.mark.parametrize("name", NOTES)
def test_what_is_odd_of_a_trace_is_a_note(folder: Path, name: str) -> None:
    file, data, wanted = NOTES[name]
    (folder / file).write_bytes(data)

    found = run("plan", "config.yaml", "--trace", file, "--costs", "costs.json")

    assert found.exit_code == 0, found.stderr
    lines = [line for line in found.stdout.splitlines() if line.startswith("note: ")]
    notes = [line.removeprefix("note: ") for line in lines]
    odd = [note for note in notes if not note.startswith(OWN)]
    assert len(odd) == len(wanted)
    assert all(note.startswith(start) for note, start in zip(odd, wanted, strict=True))


def test_the_first_requests_have_notes_of_their_own_alone(folder: Path) -> None:
    (folder / "t.csv").write_bytes(azure("2023-11-16 18:00:22.5,100000,3", at=20))

    text = run("plan", "config.yaml", "--trace", "t.csv", "--head", 5).stdout

    assert text.count("so that a plan may miss its optimum") == 1
    assert "note: only 5 requests" in text
    assert "outlier" not in text


@pytest.mark.parametrize("option", [["--head", "5"], ["--scale"]])
def test_counted_steps_have_no_requests_to_choose_from(folder: Path, option: list[str]) -> None:
    (folder / "t.json").write_text(json.dumps(COUNTERS))

    found = run("plan", "config.yaml", "--trace", "t.json", *option)

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == f"Error: {option[0]}: t.json holds counted steps, not single requests\n"


def test_lines_of_prompts_may_have_a_byte_order_mark_and_ends_of_windows(folder: Path) -> None:
    lines = [json.dumps({"prompt": "x" * num, "max_tokens": 5}) for num in (3, 40)]
    (folder / "p.jsonl").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(lines).encode())

    found = run("plan", "config.yaml", "--trace", "p.jsonl", "--costs", "costs.json")

    assert "traffic: p.jsonl, 2 requests" in found.stdout
