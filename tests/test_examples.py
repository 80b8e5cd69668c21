"""The examples run as they are, on the model that they name, if it is fetched."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from noria.runtime.cli.prompt_file import read_prompts
from noria.runtime.models.fetch import fetched_path
from noria.runtime.sampling_params import SamplingParams

ROOT = Path(__file__).resolve().parent.parent
REQUESTS = ROOT / "examples" / "requests.jsonl"
is_fetched = pytest.mark.skipif(
    fetched_path("smollm2-135m") is None, reason="run: noria fetch smollm2-135m"
)


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where examples keep what they compile, as users have them do, for each other."""
    return tmp_path_factory.mktemp("sets")


def run(folder: Path, sets: Path, *arguments: str | Path) -> str:
    """Run Python and return what it prints."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "NORIA_SETS": str(sets)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_line_of_a_prompt_file_can_run() -> None:
    params = SamplingParams()
    lines = read_prompts(REQUESTS, params, chat=False)
    lines += read_prompts(ROOT / "examples" / "prompts.txt", params, chat=True)

    assert [line.error for line in lines if line.error is not None] == []


@is_fetched
def test_questions_are_answered(tmp_path: Path, sets: Path) -> None:
    assert "Paris" in run(tmp_path, sets, ROOT / "examples" / "generate.py")


@is_fetched
def test_features_show_what_they_say(tmp_path: Path, sets: Path) -> None:
    pytest.importorskip("llguidance")

    *samples, stream, choice, refusal, call = run(
        tmp_path, sets, ROOT / "examples" / "features.py"
    ).splitlines()

    assert len(samples) == 3
    assert stream == " six|,| seven|,| eigh|t,| nine|,| "
    assert choice in ("yes", "no")
    assert "no place for tools" in refusal
    assert "'city': 'Paris', 'unit': 'celsius'" in call


@is_fetched
def test_requests_get_what_they_ask_for(tmp_path: Path, sets: Path) -> None:
    pytest.importorskip("llguidance")
    config = ROOT / "configs" / "smollm2-135m-sampling.yaml"

    command = ["-m", "noria.runtime", "generate", config, "--prompts", REQUESTS, "-o", "-"]
    results = [json.loads(line) for line in run(tmp_path, sets, *command).splitlines()]

    results.sort(key=lambda result: result["index"])
    assert [result["error"] for result in results] == [None] * 9
    logprobs, prompt_logprobs, samples, stopped, _, without, choice, year, person = results
    assert [len(token["top"]) for token in logprobs["logprobs"]] == [3] * 4
    assert len(prompt_logprobs["prompt_logprobs"]) == 5
    assert len({sample["text"] for sample in samples["completions"]}) == 3
    assert (stopped["text"], stopped["finish_reason"]) == (" six, seven, eight, nine, ", "stop")
    assert "Paris" not in without["text"]
    assert choice["text"] in ("yes", "no")
    assert int(year["text"]) in range(1900, 2100)
    assert set(json.loads(person["text"])) == {"name", "age"}
