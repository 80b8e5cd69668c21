"""Cases of prompt files: each line is judged alone, and as the Python interface judges it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from noria.runtime import LLM, SamplingParams

Run = Callable[..., Result]
Records = Callable[..., "list[dict[str, Any]]"]


@pytest.fixture
def written(run: Run, make_config: Callable[..., Path], tmp_path: Path) -> Records:
    """Run lines of prompts; return the records in the order in which they were written."""

    def generate(lines: list[dict[str, object]], **settings: object) -> list[dict[str, Any]]:
        prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = run("generate", make_config(**settings), "--prompts", prompts, "-o", output)
        assert result.exit_code in (0, 1), result.output
        return [json.loads(line) for line in output.read_text().splitlines()]

    return generate


def by_index(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return iter(sorted(records, key=lambda record: int(record["index"])))


def test_i01_i03_each_line_with_an_impossible_setting_fails_alone(written: Records) -> None:
    good = [
        {"temperature": 0},
        {"temperature": 1e-6},
        {"temperature": 1e-4, "top_k": 1},
        {"temperature": 2.0, "top_p": 1e-4},
        {"temperature": 2.0, "top_k": 1},
        {"temperature": 1e-30, "top_k": 0},
        {"temperature": 0, "top_k": -1},
        {"temperature": 0, "top_k": None},
    ]
    bad = [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "nan"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
    ]
    lines = [{"prompt": "same", **one} for one in (*good, *(one for one, _ in bad))]

    records = [*by_index(written(lines))]

    answers, refused = records[: len(good)], records[len(good) :]
    assert {tuple(record["token_ids"]) for record in answers} == {tuple(answers[0]["token_ids"])}
    assert len(answers[0]["token_ids"]) == 4
    for number, (record, (_, name)) in enumerate(zip(refused, bad, strict=True), len(good) + 1):
        assert record["error"].startswith(f"line {number}: {name} is ")


def test_j04_max_tokens_left_out_or_null_runs_to_max_model_len_in_a_file_and_in_python(
    written: Records, make_config: Callable[..., Path]
) -> None:
    """63 of 64 positions are left behind a prompt of one token; 0, -1, "5" and 5.0 are none."""
    settings = {"sampling": {"temperature": 0, "ignore_eos": True}}
    lines: list[dict[str, object]] = [{"prompt": "abcde"}, {"prompt": "abcde", "max_tokens": None}]
    lines += [{"prompt": "abcde", "max_tokens": bad} for bad in (0, -1, "5", 5.0)]

    left_out, null, *refused = by_index(written(lines, **settings))
    (output,) = LLM(make_config(**settings)).generate("abcde")

    for record in (left_out, null):
        assert tuple(record["token_ids"]) == output.token_ids
        assert record["finish_reason"] == output.finish_reason == "length"
    assert len(output.token_ids) == 64 - 5
    for record, shown in zip(refused, ("0 (int)", "-1 (int)", "'5' (str)", "5.0"), strict=True):
        assert f"max_tokens is {shown}" in record["error"]
        assert record["token_ids"] == []


def test_j05_max_tokens_beyond_what_is_left_is_clamped_in_a_file_and_in_python(
    written: Records, make_config: Callable[..., Path]
) -> None:
    """Limit 32, prompt 20, max_tokens 100: 12 tokens."""
    settings = {"max_model_len": 32, "max_num_batched_tokens": 32}
    settings |= {"num_batched_tokens_buckets": [32]}
    line = {"prompt_token_ids": [7] * 20, "max_tokens": 100, "ignore_eos": True}

    (record,) = written([line], **settings)
    params = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True)
    (output,) = LLM(make_config(**settings)).generate([7] * 20, params)

    assert len(record["token_ids"]) == 12
    assert tuple(record["token_ids"]) == output.token_ids
    assert record["finish_reason"] == output.finish_reason == "length"


def test_lines_run_in_the_order_of_their_priorities(written: Records) -> None:
    priorities = [5, 0, -2, 0, 9]
    lines = [{"prompt": f"p{i}", "priority": one} for i, one in enumerate(priorities)]
    settings = {"max_num_seqs": 1, "num_seqs_buckets": [1], "max_num_prefill_seqs": 1}

    records = written(lines, scheduling_policy="priority", **settings)

    assert [record["index"] for record in records] == [2, 1, 3, 0, 4]
    assert {record["error"] for record in records} == {None}


def test_first_come_first_served_refuses_a_line_with_a_priority_alone(written: Records) -> None:
    lines = [{"prompt": "a", "priority": one} for one in (0, 3)]

    plain, refused = by_index(written(lines))

    assert (plain["error"], len(plain["token_ids"])) == (None, 4)
    assert refused["error"] == "line 2: priority is 3, but scheduling_policy is fcfs"
