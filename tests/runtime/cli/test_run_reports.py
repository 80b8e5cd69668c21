"""``generate --counters`` and ``--metrics``: what is written, and what is never written over."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from noria.runtime.model_runner import ModelRunner
from noria.runtime.trace_files import read_counters_file, read_trace_file

Run = Callable[..., Result]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt_token_ids": [1] * length} for length in (3, 3, 40)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_counters_are_a_trace_to_plan_for(
    run: Run, config: Path, prompts: Path, tmp_path: Path
) -> None:
    counters, metrics = tmp_path / "counters.json", tmp_path / "metrics.prom"

    result = run(
        "generate", config, "--prompts", prompts, "--counters", counters, "--metrics", metrics
    )

    assert result.exit_code == 0, result.stderr
    found = read_counters_file(counters)
    assert found.graphs["prefill_t64_c64"].real_tokens == 46
    assert 'noria_real_tokens_total{graph="prefill_t64_c64",phase="prefill"} 46.0' in (
        metrics.read_text()
    )
    trace = read_trace_file(counters)
    assert trace.prompt_lens.tolist() == [3, 40]
    assert trace.weights is not None
    assert trace.weights.tolist() == [2, 1]


def test_a_file_tells_of_one_run(run: Run, config: Path, prompts: Path, tmp_path: Path) -> None:
    counters = tmp_path / "counters.json"
    counters.write_text("x" * 10_000)

    for _ in range(2):
        run("generate", config, "--prompts", prompts, "--counters", counters)

    assert json.loads(counters.read_text())["prompts"] == [[3, 4, 2], [40, 4, 1]]


def test_an_interrupted_run_says_what_it_did(
    run: Run, config: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters = tmp_path / "counters.json"
    execute, steps = ModelRunner.execute, list[object]()

    def interrupted(runner: ModelRunner, output: object) -> object:
        steps.append(output)
        if len(steps) == 3:
            raise KeyboardInterrupt
        return execute(runner, output)  # type: ignore[arg-type]

    monkeypatch.setattr(ModelRunner, "execute", interrupted)

    result = run("generate", config, "--prompts", prompts, "--counters", counters)

    assert result.exit_code == 130
    graphs = json.loads(counters.read_text())["graphs"]
    assert sum(graph["num_steps"] for graph in graphs.values()) == 2


@pytest.mark.parametrize("option", ["--counters", "--metrics"])
def test_no_file_of_the_run_is_written_over(
    run: Run, config: Path, prompts: Path, tmp_path: Path, option: str
) -> None:
    output = tmp_path / "results.jsonl"
    common = ("generate", config, "--prompts", prompts, "-o", output)
    for path, name in ((prompts, "prompts"), (config, "configuration"), (output, "results")):
        before = path.read_text() if path.exists() else None

        refused = run(*common, option, path)

        assert refused.exit_code == 2
        assert refused.stderr == f"Error: {path}: is the file of the {name}; write to another one\n"
        assert before in (None, path.read_text())
    both = run(*common, "--counters", tmp_path / "same", "--metrics", tmp_path / "same")
    assert both.stderr == (
        f"Error: {tmp_path / 'same'}: is the file of the counters; write to another one\n"
    )


def test_a_plan_is_not_written_over(
    run: Run, make_config: Callable[..., Path], prompts: Path, tmp_path: Path
) -> None:
    from plans import plan_data

    plan = tmp_path / "plan.yaml"
    plan.write_text(json.dumps(plan_data((64,), ((4, 64),), block_size=16)))
    lists = {"num_batched_tokens_buckets": None, "num_seqs_buckets": None}
    config = make_config(buckets="plan.yaml", **lists)

    refused = run("generate", config, "--prompts", prompts, "-o", plan)

    assert refused.stderr == f"Error: {plan}: is the file of the plan; write to another one\n"
    assert run("generate", config, "--prompts", prompts).exit_code == 0


def test_metrics_without_their_library_are_refused_before_the_model_is_loaded(
    run: Run, config: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setattr("noria.runtime.llm.LLM.__init__", lambda *_, **__: 1 / 0)

    result = run("generate", config, "--prompts", prompts, "--metrics", tmp_path / "metrics")

    assert result.exit_code == 2
    assert "pip install 'noria[metrics]'" in result.stderr
    assert not (tmp_path / "metrics").exists()


def test_a_file_that_cannot_be_written_is_refused_at_once(
    run: Run, config: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("noria.runtime.llm.LLM.__init__", lambda *_, **__: 1 / 0)
    missing = tmp_path / "missing" / "counters.json"

    result = run("generate", config, "--prompts", prompts, "--counters", missing)

    assert (result.exit_code, result.stderr) == (
        2,
        f"Error: {missing}: No such file or directory\n",
    )
