"""Cases of prompt files: each line is judged alone, and as the Python interface judges it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import Result

from noria.runtime import LLM, SamplingParams
from noria.runtime.graphs import CompiledGraph
from noria.runtime.model_runner import ModelRunner
from noria.runtime.scheduler_output import SchedulerOutput

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
        return [json.loads(line, parse_constant=refuse) for line in output.read_text().splitlines()]

    return generate


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


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


def test_i08_a_request_whose_logits_turn_nan_is_one_record_with_an_error(
    written: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its second token; the records of the others are as in a run without it."""
    prompts = ["one", "two is longest", "three"]
    lines: list[dict[str, object]] = [{"prompt": prompt, "logprobs": 1} for prompt in prompts]
    settings = {"sampler_features": ["greedy", "top_k_top_p", "logprobs"]}
    expected = [*by_index(written(lines, **settings))]
    run_graph = ModelRunner.run_graph

    def run_and_poison(runner: ModelRunner, graph: CompiledGraph, output: SchedulerOutput) -> None:
        run_graph(runner, graph, output)
        for row, scheduled in enumerate(output.requests):
            if scheduled.num_context_tokens == len(prompts[1]) + 2:
                graph.logits_RV[row].fill_(math.nan)

    monkeypatch.setattr(ModelRunner, "run_graph", run_and_poison)

    records = [*by_index(written(lines, **settings))]

    assert [records[0], records[2]] == [expected[0], expected[2]]
    assert records[1]["finish_reason"] == "error"
    assert records[1]["error"].startswith("line 2: the model's logits")
    assert list(records[1])[:6] == list(expected[1])[:6]


def test_i08_of_several_samples_one_fails_and_the_others_are_kept(
    written: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    line: dict[str, object] = {"prompt": "one", "n": 3, "temperature": 1, "seed": 3}
    line |= {"ignore_eos": True}
    (expected,) = written([line])
    run_graph = ModelRunner.run_graph

    def run_and_poison(runner: ModelRunner, graph: CompiledGraph, output: SchedulerOutput) -> None:
        run_graph(runner, graph, output)
        if len(output.requests) == 3 and output.requests[1].num_context_tokens == 3 + 2:
            graph.logits_RV[1].fill_(math.nan)

    monkeypatch.setattr(ModelRunner, "run_graph", run_and_poison)

    (record,) = written([line])

    samples = record["completions"]
    assert [samples[0], samples[2]] == [expected["completions"][0], expected["completions"][2]]
    assert samples[1]["finish_reason"] == "error"
    assert "logits" in samples[1]["error"]
    assert record["error"] == f"line 1: {samples[1]['error']}"
    assert record["text"] == expected["text"]
