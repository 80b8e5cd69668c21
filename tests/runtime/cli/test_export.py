"""``noria export``: the configuration on stdout, its price on stderr."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from row_seconds import row_seconds

from noria.bucketing import DecodeBucket, PlanFile, PlanLimits, PlannedGraph, PrefillBucket
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.planner.about import budget_mapping, steps_mapping
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.planner.simulation import Steps
from noria.bucketing.planner.targets import TARGETS

Run = Callable[..., Result]
LIMITS = PlanLimits(512, 8, 512, 1, 16)
FEES = GraphFees(base_compile_s=10.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)


def graph(bucket: PrefillBucket | DecodeBucket) -> PlannedGraph:
    return PlannedGraph(bucket, float(bucket.size))  # tokens cost as many seconds


def data(**about: object) -> dict[str, Any]:
    plan = PlanFile(
        limits=LIMITS,
        prefill=tuple(graph(PrefillBucket(size, 512)) for size in (128, 512)),
        decode=tuple(graph(DecodeBucket(*pair)) for pair in ((2, 256), (4, 512), (8, 512))),
        about=about,
    )
    return plan.to_mapping()


def traffic() -> dict[str, object]:
    prefill = {(100, 100, 100, 0): 3, (128, 128, 128, 0): 2}
    steps = Steps(prefill, {(2, 200): 4, (3, 300): 2}, 9.0, 9.0, 0)  # type: ignore[arg-type]
    asked = PlanSettings(unseen_share=0.0)
    return {
        "demand": steps_mapping(steps),
        "costs": row_seconds(FEES).data,
        "settings": {**asdict(asked), "must_have": []},
        "budget": budget_mapping(Budget()),
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[object], Path]:
    def write_file(content: object) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        return path

    return write_file


def test_stdout_is_the_configuration_and_nothing_else(
    run: Run, write: Callable[[object], Path]
) -> None:
    result = run("export", write(data(**traffic())), "--to", "nxdi", "--keep-sizes")

    assert result.exit_code == 0
    assert json.loads(result.stdout)["context_encoding_buckets"] == [128, 512]
    assert json.loads(result.stdout)["token_generation_batches"] == [2, 4, 8]


def test_stderr_says_what_each_rule_costs(run: Run, write: Callable[[object], Path]) -> None:
    lines = run("export", write(data(**traffic())), "--to", "nxdi", "--keep-sizes").stderr

    # 5 steps of 128 rows, 4 of 2 requests and 2 of 4: 656 s. Then 2 of 128 rows run in 512.
    assert [" ".join(line.split()) for line in lines.splitlines()[2:6]] == [
        "rule graphs compiling steps change",
        "the plan 5 50 s 656.00 s",
        "decode graphs are all pairs of two lists 8 80 s 656.00 s +0.0%",
        "a prompt of exactly a size runs in the next 8 80 s 1424.00 s +117.1%",
    ]
    assert lines.splitlines()[0].startswith("NxD Inference (neuronx-distributed-inference ")


def test_sizes_that_were_chosen_anew_stand_beside_the_plans_own(
    run: Run, write: Callable[[object], Path]
) -> None:
    plan = write(data(**traffic()))

    chosen, kept = (run("export", plan, "--to", "nxdi", *more) for more in ([], ["--keep-sizes"]))

    assert "instead, with the plan's own sizes (--keep-sizes)" in chosen.stderr
    assert "instead" not in kept.stderr
    assert chosen.stdout != kept.stdout


def test_a_plan_without_traffic_is_exported_without_a_price(
    run: Run, write: Callable[[object], Path]
) -> None:
    result = run("export", write(data()), "--to", "cudagraph")

    assert json.loads(result.stdout)["cudagraph_capture_sizes"] == [2, 4, 8]
    assert "No price: the plan does not say what traffic it was made for" in result.stderr
    assert " s " not in result.stderr.split("\n\n")[1]


@pytest.mark.parametrize("target", TARGETS)
def test_every_target_says_how_it_is_started(
    run: Run, write: Callable[[object], Path], target: str
) -> None:
    result = run("export", write(data(**traffic())), "--to", target)

    assert (result.exit_code, result.stdout.count("{}")) == (0, 0)
    assert result.stderr.startswith(f"{TARGETS[target].title} (")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noria_plan": 2}, "noria_plan: is 2; this version reads format 1"),
        ({"about": {**traffic(), "demand": "none"}}, "about.demand: is missing"),
        ({"about": {**traffic(), "costs": {"kind": "guess"}}}, "about: costs.kind: is 'guess'"),
    ],
    ids=["format", "demand", "costs"],
)
def test_a_bad_plan_is_one_line_that_names_the_file(
    run: Run, write: Callable[[object], Path], change: dict[str, object], message: str
) -> None:
    path = write({**data(), **change})

    result = run("export", path, "--to", "nxdi")

    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"Error: {path}: {message}")
    assert result.stderr.count("\n") == 1


def test_limits_that_an_engine_has_no_graphs_for_are_one_line(
    run: Run, write: Callable[[object], Path]
) -> None:
    given = data()
    given["limits"]["max_num_batched_tokens"] = 256
    given["prefill"]["graphs"] = [[256, 512, 1.0]]

    result = run("export", write(given), "--to", "vllm-neuron")

    assert (result.exit_code, result.stdout) == (2, "")
    assert "vLLM Neuron: the plan's prompts run in chunks of 256 tokens; must be" in result.stderr


def test_no_file_and_no_target_are_mistakes(run: Run, tmp_path: Path) -> None:
    missing, without = (
        run("export", tmp_path / "none.yaml", "--to", "nxdi"),
        run("export", tmp_path / "none.yaml"),
    )

    assert (missing.exit_code, without.exit_code) == (2, 2)
    assert "none.yaml" in missing.stderr
    assert "vllm-gaudi" in without.stderr


def test_a_plan_of_noria_plan_has_a_price_for_every_engine(
    run: Run, make_config: Callable[..., Path], tmp_path: Path
) -> None:
    plan = tmp_path / "made.yaml"
    options = ["--traffic", "chat", "--scale", "--head", 100, "--policy", "cover", "--search", "1s"]
    made = run("plan", make_config(), *options, "--device", "trn2", "-o", plan)
    assert made.exit_code == 0, made.stderr

    for target in TARGETS:
        result = run("export", plan, "--to", target)

        assert result.exit_code == 0, result.stderr
        assert "the plan does not say what traffic" not in result.stderr
        assert result.stderr.splitlines()[3].startswith("the plan ")
