"""``generate`` over a tiny model: records, options and summary."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from noria.runtime import LLM
from noria.runtime.cli.result_file import JsonLines

Run = Callable[..., Result]
FIELDS = ["index", "prompt", "text", "token_ids", "finish_reason", "error"]


def write_lines(path: Path, *records: object) -> Path:
    lines = [record if isinstance(record, str) else json.dumps(record) for record in records]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def by_index(path: Path) -> list[dict[str, Any]]:
    return sorted(read_records(path), key=lambda record: record["index"])


def test_texts_give_the_tokens_of_the_offline_interface(
    run: Run, config: Path, tmp_path: Path
) -> None:
    texts = ["one", "two is longer", "three", "four", "five", "six"]
    prompts = write_lines(tmp_path / "prompts.txt", *texts)

    result = run("generate", config, "--prompts", prompts, "-o", tmp_path / "out.jsonl")

    expected = LLM(config).generate(texts)
    records = by_index(tmp_path / "out.jsonl")
    assert (result.exit_code, result.stdout) == (0, "")
    assert [list(record) for record in records] == [FIELDS] * 6
    assert [record["prompt"] for record in records] == texts
    assert [tuple(record["token_ids"]) for record in records] == [o.token_ids for o in expected]
    assert [record["text"] for record in records] == [output.text for output in expected]
    assert {record["finish_reason"] for record in records} == {"length"}
    assert {record["error"] for record in records} == {None}


def test_records_come_in_the_order_in_which_they_finish(
    run: Run, config: Path, tmp_path: Path
) -> None:
    prompts = write_lines(
        tmp_path / "prompts.jsonl",
        {"prompt": "slow", "max_tokens": 9, "ignore_eos": True},
        {"prompt": "fast", "max_tokens": 1},
        {"prompt": "between", "max_tokens": 4, "ignore_eos": True},
    )

    run("generate", config, "--prompts", prompts, "-o", tmp_path / "out.jsonl")

    records = read_records(tmp_path / "out.jsonl")
    assert [record["index"] for record in records] == [1, 2, 0]
    assert [len(record["token_ids"]) for record in records] == [1, 4, 9]


def test_without_an_output_file_texts_are_printed_in_the_order_of_the_prompts(
    run: Run, config: Path, tmp_path: Path
) -> None:
    prompts = write_lines(
        tmp_path / "prompts.jsonl",
        {"prompt": "slow", "max_tokens": 9, "ignore_eos": True},
        {"prompt": "bad", "top_k": "many"},
        {"prompt_token_ids": [1, 2], "max_tokens": 1},
    )

    result = run("generate", config, "--prompts", prompts)

    titles = [line for line in result.stdout.splitlines() if line.startswith("[")]
    assert titles == ["[0] slow", "[1] bad", "[2]"]
    assert "failed: line 2: top_k is 'many'" in result.stdout
    assert result.exit_code == 1


def test_options_replace_the_configuration_and_lines_replace_options(
    run: Run, config: Path, tmp_path: Path
) -> None:
    prompts = write_lines(
        tmp_path / "prompts.jsonl",
        {"prompt": "a", "ignore_eos": True},
        {"prompt": "a", "ignore_eos": True, "max_tokens": 6},
    )

    run("generate", config, "--prompts", prompts, "-o", tmp_path / "out.jsonl", "--max-tokens", "2")

    assert [len(record["token_ids"]) for record in by_index(tmp_path / "out.jsonl")] == [2, 6]


def test_a_seed_makes_sampled_tokens_repeat(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = write_lines(tmp_path / "prompts.txt", "a", "b", "c")
    options = ["--temperature", "1.5", "--top-p", "0.9", "--top-k", "50"]
    first, again, other = (tmp_path / name for name in ("first", "again", "other"))

    for output, seed in ((first, 1), (again, 1), (other, 2)):
        run("generate", config, "--prompts", prompts, "-o", output, *options, "--seed", seed)

    assert by_index(first) == by_index(again)
    assert by_index(first) != by_index(other)


def test_a01_a03_bad_lines_fail_alone_with_their_numbers(
    run: Run, config: Path, tmp_path: Path
) -> None:
    good = {"prompt": "good"}
    prompts = write_lines(
        tmp_path / "prompts.jsonl",
        good,
        [1, 2, 3],
        "",
        {"promt": "x"},
        "{",
        {"prompt": "x" * 80},
        good,
    )
    alone = write_lines(tmp_path / "alone.jsonl", good)

    result = run("generate", config, "--prompts", prompts, "-o", tmp_path / "out.jsonl")
    run("generate", config, "--prompts", alone, "-o", tmp_path / "alone-out.jsonl")

    records = by_index(tmp_path / "out.jsonl")
    expected = read_records(tmp_path / "alone-out.jsonl")[0]["token_ids"]
    assert result.exit_code == 1
    assert [record["index"] for record in records] == [0, 1, 2, 3, 4, 5]
    assert [record["token_ids"] for record in records] == [expected, [], [], [], [], expected]
    assert [record["finish_reason"] == "error" for record in records] == [
        record["error"] is not None for record in records
    ]
    assert [record["error"].split(":")[0] for record in records[1:5]] == [
        "line 2",
        "line 4",
        "line 5",
        "line 6",
    ]
    assert "6 prompts: 2 finished, 4 failed" in result.stderr


def test_a11_a_run_in_which_every_request_fails_has_status_1(
    run: Run, config: Path, tmp_path: Path
) -> None:
    prompts = write_lines(tmp_path / "prompts.txt", "x" * 70, "y" * 80)

    result = run("generate", config, "--prompts", prompts, "-o", tmp_path / "out.jsonl")

    assert result.exit_code == 1
    assert {record["text"] for record in read_records(tmp_path / "out.jsonl")} == {None}
    assert "2 prompts: 0 finished, 2 failed" in result.stderr


def test_h03_a_chat_without_a_template_fails_alone(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = write_lines(
        tmp_path / "prompts.jsonl",
        {"messages": [{"role": "user", "content": "hello"}]},
        {"prompt_token_ids": [1, 2, 3]},
    )

    result = run("generate", config, "--chat", "--prompts", prompts, "-o", tmp_path / "out.jsonl")

    refused, answered = by_index(tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert "chat template" in refused["error"]
    assert answered["error"] is None
    assert len(answered["token_ids"]) == 4


def test_chat_makes_a_text_the_message_of_a_conversation(
    run: Run, config: Path, tmp_path: Path
) -> None:
    prompts = write_lines(tmp_path / "prompts.txt", "hello")

    result = run("generate", config, "--chat", "--prompts", prompts, "-o", tmp_path / "out.jsonl")

    (record,) = read_records(tmp_path / "out.jsonl")
    assert result.exit_code == 1
    assert record["prompt"] == "hello"
    assert "chat template" in record["error"]


def test_results_replace_older_ones_only_once_the_model_runs(
    run: Run, make_config: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = write_lines(tmp_path / "prompts.txt", "hello")
    output = write_lines(tmp_path / "out.jsonl", {"old": True})

    failed = run("generate", make_config(model="no-such-model"), "--prompts", prompts, "-o", output)
    kept = read_records(output)
    run("generate", make_config(), "--prompts", prompts, "-o", output)

    assert (failed.exit_code, kept) == (2, [{"old": True}])
    assert [list(record) for record in read_records(output)] == [FIELDS]


def test_a_dash_writes_records_to_stdout(run: Run, config: Path, tmp_path: Path) -> None:
    prompts = write_lines(tmp_path / "prompts.txt", "hello", "world")

    result = run("generate", config, "--prompts", prompts, "-o", "-")

    assert [json.loads(line)["index"] for line in result.stdout.splitlines()] == [0, 1]


def test_the_summary_counts_tokens_and_padding(run: Run, config: Path, tmp_path: Path) -> None:
    line = {"prompt_token_ids": [1, 2, 3], "max_tokens": 3, "ignore_eos": True}
    prompts = write_lines(tmp_path / "prompts.jsonl", line, line, line)

    lines = run("generate", config, "--prompts", prompts).stderr.splitlines()

    # One prefill step of 9 tokens, then two decode steps of 3 requests, in rows of 32 and 4.
    start = lines.index(next(line for line in lines if line.startswith("3 prompts")))
    rows = [line.split() for line in lines[start:]]
    assert [row[:3] for row in rows[1:4]] == [
        ["9", "new", "tokens,"],
        ["prefill:", "9", "tokens"],
        ["decode:", "6", "tokens"],
    ]
    assert rows[6:] == [
        ["decode_s4_c64", "2", "6", "8", "25.0%"],
        ["prefill_t32_c64", "1", "9", "32", "71.9%"],
        ["in", "all", "3", "15", "40", "62.5%"],
    ]


def test_all_that_finished_in_a_step_is_written_before_an_interrupt_ends_the_run(
    run: Run, make_config: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [{"prompt_token_ids": [i], "ignore_eos": True} for i in range(8)]
    prompts = write_lines(tmp_path / "prompts.jsonl", *lines)
    output = tmp_path / "out.jsonl"
    write = JsonLines.write

    def interrupted_write(writer: JsonLines, result: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        write(writer, result)  # type: ignore[arg-type]

    monkeypatch.setattr(JsonLines, "write", interrupted_write)

    result = run("generate", make_config(), "--prompts", prompts, "-o", output)

    assert result.exit_code == 130
    assert [record["index"] for record in read_records(output)] == [0, 1, 2, 3]
    assert "8 prompts: 4 finished, 0 failed, 4 unfinished" in result.stderr
