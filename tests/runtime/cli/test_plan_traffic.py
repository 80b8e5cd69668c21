"""``noria plan`` with traffic: which traffic it takes, and the plan that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from plan_commands import make_plan, run
from planned_traffic import SETTINGS

from noria.runtime.config import load_config
from noria.runtime.plan_files import read_plan


def test_an_engine_takes_the_plan(folder: Path) -> None:
    make_plan("--trace", "trace.csv")
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, "buckets": "plan.yaml"}))

    file = read_plan(folder / "plan.yaml")
    shown = run("plan", "config.yaml")

    assert load_config(folder / "config.yaml").buckets == file
    assert all(graph.bucket.label in shown.stdout for graph in (*file.prefill, *file.decode))


def test_the_same_plan_is_the_same_bytes_in_any_process(folder: Path) -> None:
    written = []
    for seed in ("1", "2"):
        command = [sys.executable, "-m", "noria.runtime", "plan", "config.yaml"]
        command += ["--costs", "costs.json", "--trace", "trace.csv", "--search", "10m"]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([*command, "-o", f"{seed}.yaml"], check=True, env=env, capture_output=True)
        written.append((folder / f"{seed}.yaml").read_bytes())

    assert written[0] == written[1]


def test_options_reach_the_planner(folder: Path) -> None:
    make_plan(
        "--traffic",
        "chat",
        "--scale",
        "--head",
        300,
        "--must-have",
        48,
        "--must-have",
        96,
        "--max-graphs",
        7,
        "--policy",
        "fill",
        "--guard-rail",
        "off",
        "--decode-shape",
        "list",
        "--compile-budget",
        "14s",
        "--memory",
        "1MiB",
        "--horizon",
        "2h",
        "--search",
        "20s",
    )

    file = read_plan(folder / "plan.yaml")
    about: Any = file.about
    assert len(file.prefill) + len(file.decode) <= 7
    assert {48, 96} <= {graph.bucket.size for graph in file.prefill}
    assert file.policy == "fill"
    assert {graph.bucket.context_len for graph in file.decode} == {256}
    assert about["trace"]["name"] == "synthetic chat"
    assert about["trace"]["num_requests"] == 300
    assert about["budget"] == {
        "compile_s": 14.0,
        "workers": 1,
        "num_bytes": 2**20,
        "max_num_graphs": 7,
        "horizon_s": 7200,
    }
    assert about["settings"]["max_ratio"] is None


def test_traffic_without_outputs_gets_powers_of_two_for_decode(folder: Path) -> None:
    (folder / "lens.csv").write_text("size,count\n10,30\n70,20.5\n200,5\n")

    text = make_plan("--trace", "lens.csv").stdout

    file = read_plan(folder / "plan.yaml")
    assert [graph.bucket.size for graph in file.decode] == [1, 2, 4, 8]
    assert "note: the traffic has lengths of prompts, but no single requests" in text
    assert "not known" in text
    assert "decode powers of two, as nothing is known of its steps" in text


def test_unknown_decode_steps_keep_within_the_budget(folder: Path) -> None:
    (folder / "lens.csv").write_text("size,count\n10,30\n70,20\n")

    make_plan("--trace", "lens.csv", "--max-graphs", 2)

    assert [graph.bucket.size for graph in read_plan(folder / "plan.yaml").decode] == [8]


def test_prompts_are_counted_by_the_tokenizer(folder: Path) -> None:
    lines = [{"prompt": "x" * num, "max_tokens": 5} for num in (3, 40, 100)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))

    make_plan("--trace", "prompts.jsonl")

    about: Any = read_plan(folder / "plan.yaml").about
    assert about["trace"]["num_requests"] == 3
    assert any("max_tokens allows" in warning for warning in about["trace"]["warnings"])


def test_counters_of_a_run_are_traffic(folder: Path) -> None:
    counters = {"noria_counters": 1, "prefill": [[40, 40, 9, 9]], "decode": [[3, 50, 40]]}
    (folder / "counters.json").write_text(json.dumps(counters))

    text = make_plan("--trace", "counters.json").stdout

    file = read_plan(folder / "plan.yaml")
    assert "note: these are the steps that an engine counted" in text
    assert 48 in {graph.bucket.size for graph in file.prefill}
    assert 3 in {graph.bucket.size for graph in file.decode}


@pytest.mark.parametrize("prefix", ["exact", "bucketed", "max", None])
def test_what_prefill_pays_for_the_prefix_may_be_asked(folder: Path, prefix: str | None) -> None:
    text = make_plan("--trace", "trace.csv", *(["--prefix", prefix] if prefix else [])).stdout

    about = read_plan(folder / "plan.yaml").about
    assert about["settings"]["prefix"] == (prefix or "exact")  # type: ignore[index]
    assert f" (here: {prefix or 'exact'})" in text


@pytest.mark.parametrize("buckets", ["plan.yaml", {"noria_plan": 1}])
def test_a_plan_is_made_where_the_configuration_names_none_that_fits(
    folder: Path, buckets: object
) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, "buckets": buckets}))

    make_plan("--trace", "trace.csv")

    assert read_plan(folder / "plan.yaml").limits.max_model_len == 256
