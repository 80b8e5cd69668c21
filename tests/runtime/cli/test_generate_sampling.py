"""Records of requests for logprobs or several samples, and lines that cannot be sampled."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import Result

from noria.runtime import LLM, SamplingParams

Run = Callable[..., Result]
FIELDS = ["index", "prompt", "text", "token_ids", "finish_reason", "error"]
FEATURES = ["greedy", "top_k_top_p", "logit_bias", "logprobs", "prompt_logprobs"]


@pytest.fixture
def records_of(run: Run, make_config: Callable[..., Path], tmp_path: Path) -> Callable[..., Any]:
    """Run lines of prompts; return the records, read strictly, by index."""

    def generate(*lines: dict[str, object], **settings: object) -> list[dict[str, Any]]:
        config = make_config(sampler_features=FEATURES, max_logprobs=400, **settings)
        prompts, output = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        run("generate", config, "--prompts", prompts, "-o", output)
        found = [
            json.loads(line, parse_constant=refuse) for line in output.read_text().splitlines()
        ]
        return sorted(found, key=lambda record: int(record["index"]))

    return generate


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is no JSON")


def test_i09_every_record_is_strict_json_whatever_was_filtered(records_of) -> None:
    """top_k 1 filters all but one token; more logprobs than the vocabulary of 300 has; none."""
    filtered, many, none, plain = records_of(
        {"prompt": "a", "temperature": 1, "top_k": 1, "logprobs": 5},
        {"prompt": "b", "logprobs": 400, "logit_bias": {"7": -100}},
        {"prompt": "c", "logprobs": 0, "prompt_logprobs": 2},
        {"prompt": "d"},
    )

    assert list(plain) == FIELDS
    assert list(filtered) == [*FIELDS, "logprobs"]
    assert list(none) == [*FIELDS, "logprobs", "prompt_logprobs"]
    assert [len(one["top"]) for one in filtered["logprobs"]] == [5] * 4
    assert [len(one["top"]) for one in many["logprobs"]] == [300] * 4
    assert [one["top"] for one in none["logprobs"]] == [[]] * 4
    for record in (filtered, many, none):
        for token_id, one in zip(record["token_ids"], record["logprobs"], strict=True):
            assert -9999 <= one["logprob"] <= 0
            assert one["rank"] >= 1
            if one["top"]:
                assert one["top"][one["rank"] - 1] == [token_id, one["logprob"]]


def test_logprobs_of_a_prompt_are_one_for_each_token_but_the_first(records_of) -> None:
    (record,) = records_of({"prompt_token_ids": [5, 6, 7, 8], "prompt_logprobs": 1})

    assert [list(one) for one in record["prompt_logprobs"]] == [["logprob", "rank", "top"]] * 3


def test_several_samples_are_listed_and_the_first_is_the_record(records_of) -> None:
    line = {"prompt": "a", "temperature": 1, "seed": 3, "ignore_eos": True}

    several, single = records_of(line | {"n": 3, "logprobs": 0}, line | {"logprobs": 0})

    samples = several["completions"]
    assert list(several) == [*FIELDS, "logprobs", "completions"]
    assert len({tuple(sample["token_ids"]) for sample in samples}) == 3
    for key in ("text", "token_ids", "finish_reason", "logprobs", "error"):
        assert several[key] == samples[0][key] == single[key]


def test_several_samples_are_printed_and_counted(
    run: Run, make_config: Callable[..., Path], tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [5], "n": 2, "temperature": 1, "ignore_eos": true}\n')

    result = run("generate", make_config(), "--prompts", prompts)

    assert "1 prompts: 1 finished, 0 failed" in result.stderr
    assert "8 new tokens" in result.stderr
    assert len(result.stdout.splitlines()) >= 3


def test_a_line_that_needs_an_unlisted_feature_fails_alone(records_of) -> None:
    bad, good = records_of({"prompt": "a", "repetition_penalty": 1.1}, {"prompt": "b"})

    assert bad["finish_reason"] == "error"
    assert bad["error"] == (
        "line 1: repetition_penalty 1.1 needs the sampler feature penalties, "
        "which sampler_features does not list"
    )
    assert good["error"] is None


def test_values_and_lines_agree_with_the_offline_interface(
    records_of, make_config: Callable[..., Path]
) -> None:
    (record,) = records_of({"prompt": "a", "logprobs": 2})

    llm = LLM(make_config(sampler_features=FEATURES))
    (output,) = llm.generate("a", SamplingParams(temperature=0, max_tokens=4, logprobs=2))

    logprobs = output.completions[0].logprobs
    assert logprobs is not None
    expected = [(one.logprob, one.rank, [list(pair) for pair in one.top]) for one in logprobs]
    assert [tuple(one.values()) for one in record["logprobs"]] == expected
