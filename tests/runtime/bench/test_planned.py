"""``noria bench plan``: what the planner expects of requests is what an engine runs for them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from planned_traffic import make_config, measured, traffic, write_trace

from noria.bucketing.costs.table import CostTable
from noria.bucketing.plan_file import PlanFile
from noria.bucketing.traces.trace import Trace
from noria.runtime import engine_start
from noria.runtime.bench import planned
from noria.runtime.bench.planned import PlannedOptions, run_planned
from noria.runtime.bench.planned_report import EngineRun, PhaseWork, PlannedReport
from noria.runtime.cli import main
from noria.runtime.config import Config, parse_config
from noria.runtime.errors import NoriaError
from noria.runtime.plan_files import write_plan
from noria.runtime.plan_making import make_planned_file
from noria.runtime.plan_problem import PlanOptions, plan_task
from noria.runtime.step_costs import write_costs

SETTINGS = {"dtype": "float32", "num_threads": 1}
NUM_REQUESTS = 40


@pytest.fixture(scope="module", autouse=True)
def keep_num_threads():
    """Undo the configuration's ``num_threads``, which holds for the whole process."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module", autouse=True)
def sets(tmp_path_factory: pytest.TempPathFactory):
    """A local set, so that what plans have alike is compiled once; all of it before serving."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORIA_SETS", str(tmp_path_factory.mktemp("sets")))
        patch.setattr(engine_start, "WORKER_START_S", 1e9)
        yield


def plan_for(config: Config, trace: Trace, folder: Path, **options: Any) -> PlanFile:
    """Return a plan with costs as if they had been measured."""
    costs: CostTable = measured(config)
    write_costs(costs, folder / "costs.json")
    chosen = PlanOptions(costs=folder / "costs.json", search_s=0.2, **options)
    return make_planned_file(plan_task(config, trace, chosen), trace_name="test").file


def no_progress(what: str, num_done: int, total: int) -> None:
    """Show nothing."""


@pytest.mark.parametrize(
    ("policy", "num_blocks"), [("fill", "auto"), ("cover", 30)], ids=["fill", "cover, scarce"]
)
def test_what_the_planner_expects_is_what_runs(
    tmp_path: Path, policy: Any, num_blocks: object
) -> None:
    config = make_config(**SETTINGS, num_blocks=num_blocks)
    trace = traffic()
    plan = plan_for(config, trace, tmp_path, policy=policy)
    assert plan.policy == policy

    report = run_planned(
        parse_config({**config.to_mapping(), **no_lists(), "buckets": plan}),
        trace,
        PlannedOptions(num_requests=NUM_REQUESTS),
        no_progress,
    )

    assert report.num_requests == NUM_REQUESTS
    assert report.is_prefill_exact
    assert abs(report.decode_points) < 1e-9
    assert report.are_tokens_equal
    assert report.is_as_expected
    assert report.baseline is not None
    # The plan knows the traffic: it pads less than the rule.
    work = [report.planned.phases["prefill"], report.baseline.phases["prefill"]]
    assert work[0].padded_tokens < work[1].padded_tokens
    assert all(one.seconds is not None for one in report.expected.values())
    assert report.planned.num_output_tokens == int(np.sum(trace.output_lens[:NUM_REQUESTS]))  # type: ignore[index]


def no_lists() -> dict[str, None]:
    return dict.fromkeys(planned.BUCKET_LISTS)


def test_a_plan_without_costs_expects_no_seconds(tmp_path: Path) -> None:
    config = make_config(**SETTINGS)
    by_hand = replace(plan_for(config, traffic(), tmp_path), about={})

    report = run_planned(
        parse_config({**config.to_mapping(), **no_lists(), "buckets": by_hand}),
        traffic(),
        PlannedOptions(num_requests=6, compare=False),
        no_progress,
    )

    assert (report.is_as_expected, report.baseline) == (True, None)
    assert [work.seconds for work in report.expected.values()] == [None, None]


def work(padded_tokens: int) -> PhaseWork:
    return PhaseWork(3, 100, padded_tokens, 1.0)


def report_of(
    prefill: int = 120, decode: int = 130, tokens: tuple[int, ...] = (1, 2)
) -> PlannedReport:
    """Return a report in which 120 and 130 padded tokens are expected, and tokens (1, 2)."""
    ran = {"prefill": work(prefill), "decode": work(decode)}
    return PlannedReport(
        num_requests=1,
        num_prompt_tokens=100,
        expected={"prefill": work(120), "decode": work(130)},
        planned=EngineRun("the plan", 3, 2.0, ran, (tokens,)),
        baseline=EngineRun("powers_of_two", 3, 2.0, ran, ((1, 2),)),
        warnings=("it rains",),
    )


@pytest.mark.parametrize(
    ("changes", "is_as_expected"),
    [
        ({}, True),
        ({"decode": 134}, True),
        ({"decode": 136}, False),
        ({"decode": 124}, False),
        ({"prefill": 121}, False),
        ({"tokens": (1, 3)}, False),
    ],
)
def test_what_is_not_as_expected_is_a_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], is_as_expected: bool
) -> None:
    config, trace = written(tmp_path, make_config(**SETTINGS).to_mapping())
    monkeypatch.setattr(planned, "run_planned", lambda *_: report_of(**changes))

    result = run("bench", "plan", config, "--trace", trace, "--json", tmp_path / "found.json")

    assert result.exit_code == (0 if is_as_expected else 1)
    assert "note: it rains\n" in result.stdout
    assert ("OTHER TOKENS" in result.stdout) == ("tokens" in changes)
    assert ("prefill exact" in result.stdout) == ("prefill" not in changes)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["are_tokens_equal"] == ("tokens" not in changes)
    assert found["decode_points"] == pytest.approx(changes.get("decode", 130) - 130)


def test_the_command_runs_the_plan_of_a_file(tmp_path: Path) -> None:
    config = make_config(**SETTINGS)
    settings = {"model": config.model, **SETTINGS, "num_seqs_buckets": [2, 8]}
    limits = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size")
    settings |= {key: getattr(config, key) for key in (*limits, "max_num_prefill_seqs")}
    path, trace = written(tmp_path, settings)
    write_plan(plan_for(config, traffic(), tmp_path), tmp_path / "plan.yaml")
    seen: list[Config] = []

    def note(config: Config, *_: object) -> PlannedReport:
        seen.append(config)
        return report_of()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planned, "run_planned", note)
        result = run("bench", "plan", path, "--trace", trace, "--plan", tmp_path / "plan.yaml")

    assert result.exit_code == 0, result.output
    assert isinstance(seen[0].buckets, PlanFile)
    assert run("bench", "plan", path, "--trace", trace).stderr == (
        "Error: buckets: is powers_of_two, which is no plan; "
        "noria plan CONFIG --trace FILE -o plan.yaml makes one\n"
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output_lens": None}, "has no output lengths"),
        ({"weights": np.array([2.0, 1.0])}, "is a histogram of lengths"),
        ({"prompt_lens": np.array([900, 900])}, "no prompt of the trace fits"),
    ],
)
def test_a_trace_that_cannot_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    config = make_config(**SETTINGS)
    plan = plan_for(config, traffic(), tmp_path)
    settings = {**config.to_mapping(), **no_lists(), "buckets": plan}
    lens = np.array([5, 6])
    trace = Trace(**({"prompt_lens": lens, "output_lens": lens} | changes))

    with pytest.raises(NoriaError, match=message):
        run_planned(parse_config(settings), trace, PlannedOptions(), no_progress)


def written(folder: Path, settings: dict[str, Any]) -> tuple[Path, Path]:
    """Write a configuration and a trace."""
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    return folder / "config.yaml", write_trace(folder / "trace.csv", traffic())


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
