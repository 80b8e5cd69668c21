"""``noria plan`` with traffic: the plan that it writes, what it says, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner, Result
from planned_traffic import SETTINGS, make_config, measured, traffic, write_trace

from noria.runtime.cli import main
from noria.runtime.config import load_config
from noria.runtime.plan_files import read_plan
from noria.runtime.step_costs import write_costs


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a configuration, its costs and a trace, which is the current one."""
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(SETTINGS))
    write_costs(measured(make_config()), tmp_path / "costs.json")
    write_trace(tmp_path / "trace.csv", traffic())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan(*args: object) -> Result:
    """Make a plan in the current folder from measured costs."""
    found = run("plan", "config.yaml", "--costs", "costs.json", "-o", "plan.yaml", *args)
    assert found.exit_code == 0, found.output
    return found


def test_an_engine_takes_the_plan(folder: Path) -> None:
    plan("--trace", "trace.csv")
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, "buckets": "plan.yaml"}))

    file = read_plan(folder / "plan.yaml")
    shown = run("plan", "config.yaml")

    assert load_config(folder / "config.yaml").buckets == file
    assert all(graph.bucket.label in shown.stdout for graph in (*file.prefill, *file.decode))


def test_the_summary_says_what_is_needed(folder: Path) -> None:
    text = plan("--trace", "trace.csv", "--workers", "2").stdout
    file = read_plan(folder / "plan.yaml")

    num = len(file.prefill) + len(file.decode)
    assert text.startswith(f"plan.yaml: {num} graphs, {len(file.prefill)} prefill and ")
    assert "traffic: trace.csv, 120 requests in " in text
    assert "note: seconds are measured on a processor, backend cpu, 2 threads" in text
    assert "note: only 120 requests, so that" in text
    for line in ("this plan ", "vLLM Neuron (powers of two) ", "bill: ", "proof: ", "ready: "):
        assert f"\n{line}" in text
    assert f"bill: {num}.0 s of compiling" in text  # two seconds each, two at once
    assert "gain: steps take " in text


def test_json_has_the_plan_and_what_it_is_worth(folder: Path) -> None:
    found = json.loads(plan("--trace", "trace.csv", "--json").stdout)
    mapping = read_plan(folder / "plan.yaml").to_mapping()

    assert found["prefill"] == mapping["prefill"]
    assert 0.02 < found["summary"]["gain"] < 1
    assert found["about"]["trace"]["num_requests"] == 120
    assert "steps" not in found["about"]


def test_a_report_is_printed_or_written_as_a_page(folder: Path) -> None:
    summary = plan("--trace", "trace.csv", "--search", "10m").stdout
    options = ("--trace", "trace.csv", "--search", "10m", "--html", "report.html")
    with_page = plan(*options).stdout
    text = plan(*options, "--report").stdout
    data = json.loads(plan(*options, "--report", "--json").stdout)
    page = (folder / "report.html").read_bytes()

    assert with_page == summary
    assert text.startswith("Plan for trace.csv: 120 requests in ")
    assert f"\n{data['verdict']}\n" in text
    assert "\nCOVERAGE\n" in text
    assert f"{data['rules'][1]['saved_share']:.1%}" in summary.splitlines()[-1]
    assert f"with {data['rules'][1]['name']}, " in summary.splitlines()[-1]
    assert data["costs"]["notes"][0].startswith("seconds are measured")
    assert page.startswith(b"<!DOCTYPE html>")
    assert plan(*options).stdout == summary
    assert (folder / "report.html").read_bytes() == page


@pytest.mark.parametrize("option", ["-o", "--html"])
@pytest.mark.parametrize(
    ("file", "what"),
    [("config.yaml", "CONFIG"), ("trace.csv", "--trace"), ("./trace.csv", "--trace")],
)
def test_what_a_plan_reads_is_not_written_over(
    folder: Path, option: str, file: str, what: str
) -> None:
    before = (folder / file).read_bytes()
    found = run("plan", "config.yaml", "--trace", "trace.csv", option, file)

    assert found.exit_code == 2
    assert f" is the file of {what}; name another" in found.stderr
    assert (folder / file).read_bytes() == before


def test_costs_and_the_plan_are_not_written_over(folder: Path) -> None:
    costs = ("--costs", "costs.json", "-o", "costs.json")
    page = ("-o", "same", "--html", "same")

    assert "is the file of --costs" in run("plan", "config.yaml", *TRACE, *costs).stderr
    assert "is the file of --output" in run("plan", "config.yaml", *TRACE, *page).stderr
    assert not (folder / "same").exists()


def test_a_report_has_a_folder_before_seconds_are_spent(folder: Path) -> None:
    found = run("plan", "config.yaml", "--traffic", "chat", "--html", "nowhere/report.html")

    assert found.exit_code == 2
    assert "nowhere/report.html: there is no folder nowhere" in found.stderr
    assert run("plan", "config.yaml", "--html", "report.html").exit_code == 2


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
    plan(
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


def test_a_proof_is_named(folder: Path) -> None:
    pytest.importorskip("scipy")

    text = plan("--trace", "trace.csv", "--search", "1ms", "--prove").stdout

    assert "decode proved to be the best of its number" in text


def test_a_proof_without_scipy_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)

    found = run("plan", "config.yaml", "--trace", "trace.csv", "--prove")

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "Error: --prove: needs scipy; run: pip install 'noria[prove]'\n"


def test_traffic_without_outputs_gets_powers_of_two_for_decode(folder: Path) -> None:
    (folder / "lens.csv").write_text("size,count\n10,30\n70,20.5\n200,5\n")

    text = plan("--trace", "lens.csv").stdout

    file = read_plan(folder / "plan.yaml")
    assert [graph.bucket.size for graph in file.decode] == [1, 2, 4, 8]
    assert "note: the traffic has lengths of prompts, but no single requests" in text
    assert "not known" in text
    assert "decode powers of two, as nothing is known of its steps" in text


def test_unknown_decode_steps_keep_within_the_budget(folder: Path) -> None:
    (folder / "lens.csv").write_text("size,count\n10,30\n70,20\n")

    plan("--trace", "lens.csv", "--max-graphs", 2)

    assert [graph.bucket.size for graph in read_plan(folder / "plan.yaml").decode] == [8]


def test_prompts_are_counted_by_the_tokenizer(folder: Path) -> None:
    lines = [{"prompt": "x" * num, "max_tokens": 5} for num in (3, 40, 100)]
    (folder / "prompts.jsonl").write_text("\n".join(map(json.dumps, lines)))

    plan("--trace", "prompts.jsonl")

    about: Any = read_plan(folder / "plan.yaml").about
    assert about["trace"]["num_requests"] == 3
    assert any("max_tokens allows" in warning for warning in about["trace"]["warnings"])


def test_counters_of_a_run_are_traffic(folder: Path) -> None:
    counters = {"noria_counters": 1, "prefill": [[40, 40, 9, 9]], "decode": [[3, 50, 40]]}
    (folder / "counters.json").write_text(json.dumps(counters))

    text = plan("--trace", "counters.json").stdout

    file = read_plan(folder / "plan.yaml")
    assert "note: these are the steps that an engine counted" in text
    assert 48 in {graph.bucket.size for graph in file.prefill}
    assert 3 in {graph.bucket.size for graph in file.decode}


def test_a_small_gain_is_said_plainly(folder: Path) -> None:
    full = traffic(60)
    same = replace(full, prompt_lens=np.full(60, 128), output_lens=np.full(60, 1))
    write_trace(folder / "full.csv", same)

    text = plan("--trace", "full.csv").stdout

    assert "gain: under 2 %: the plan saves no" in text
    assert "that default would do" in text


@pytest.mark.parametrize("prefix", ["exact", "bucketed", "max", None])
def test_what_prefill_pays_for_the_prefix_may_be_asked(folder: Path, prefix: str | None) -> None:
    text = plan("--trace", "trace.csv", *(["--prefix", prefix] if prefix else [])).stdout

    about = read_plan(folder / "plan.yaml").about
    assert about["settings"]["prefix"] == (prefix or "exact")  # type: ignore[index]
    assert f" (here: {prefix or 'exact'})" in text


def test_no_other_prefix_may_be_asked(folder: Path) -> None:
    found = run("plan", "config.yaml", "--trace", "trace.csv", "--prefix", "live")

    assert found.exit_code == 2
    assert "'live' is not one of 'exact', 'bucketed', 'max'" in found.stderr


def test_without_costs_a_cpu_says_what_to_run(folder: Path) -> None:
    found = run("plan", "config.yaml", "--trace", "trace.csv")

    assert found.exit_code == 0
    assert "note: nothing was measured: seconds are nominal" in found.stdout
    assert "not written: give -o FILE" in found.stdout
    assert "noria bench shapes CONFIG -o costs.json" in found.stdout


@pytest.mark.parametrize("buckets", ["plan.yaml", {"noria_plan": 1}])
def test_a_plan_is_made_where_the_configuration_names_none_that_fits(
    folder: Path, buckets: object
) -> None:
    (folder / "config.yaml").write_text(yaml.safe_dump({**SETTINGS, "buckets": buckets}))

    plan("--trace", "trace.csv")

    assert read_plan(folder / "plan.yaml").limits.max_model_len == 256


NEED = "needs traffic to plan for: --trace FILE, or --traffic and the name of a family"
TRACE = ["--trace", "trace.csv"]
REFUSED: list[tuple[Sequence[object], str]] = [
    (["-o", "plan.yaml"], f"--output: {NEED}"),
    (["--costs", "costs.json"], f"--costs: {NEED}"),
    (["--max-graphs", 4], f"--max-graphs: {NEED}"),
    ([*TRACE, "--traffic", "chat"], "--trace: is given, and --traffic is, too"),
    (["--trace", "nowhere.csv"], "nowhere.csv: No such file or directory"),
    (["--trace", "."], ".: Is a directory"),
    (["--trace", "config.yaml"], "config.yaml, line 1: "),
    (["--trace", "empty.csv"], "empty.csv: "),
    (["--trace", "long.csv"], "no prompt of the trace fits: the shortest has 300 tokens"),
    ([*TRACE, "--costs", "config.yaml"], "config.yaml, line 1, column 1: there is 'b' that cannot"),
    ([*TRACE, "--costs", "nowhere.json"], "nowhere.json: No such file or directory"),
    ([*TRACE, "--device", "trn9"], "--device: device 'trn9' is not known"),
    ([*TRACE, "--device", "config.yaml"], "--device: device.block_size: is not known"),
    ([*TRACE, "--fitted"], "--fitted: needs --costs"),
    ([*TRACE, "--compile-budget", "1.5 m"], "--compile-budget: is '1.5 m'; must be a time such as"),
    ([*TRACE, "--compile-budget", "0s"], "--compile-budget: is '0s'; must be a time"),
    (
        [*TRACE, "--compile-budget", "0.01s"],
        "no plan keeps within 0.01 s of compiling with 1 w",
    ),
    ([*TRACE, "--horizon", "nan"], "--horizon: is 'nan'; must be a time"),
    ([*TRACE, "--horizon", "-1h"], "--horizon: is '-1h'; must be a time"),
    ([*TRACE, "--search", "\u0663s"], "--search: is '\u0663s'; must be a time"),
    ([*TRACE, "--memory", "2GB"], "--memory: is '2GB'; must be bytes or a size such as 512MiB"),
    ([*TRACE, "--memory", "0"], "--memory: is '0'; must be bytes"),
    ([*TRACE, "--memory", "1"], "no plan keeps within 1 bytes: the smallest takes "),
    ([*TRACE, "--workers", "0"], "--workers: is '0'; must be a whole number of at least 1"),
    ([*TRACE, "--workers", "1.5"], "--workers: is '1.5'; must be a whole number"),
    ([*TRACE, "--max-graphs", "1"], "--max-graphs: is '1'; must be a whole number of at least 2"),
    ([*TRACE, "--must-have", "640"], "--must-have: 640; must be a size up to 128"),
    ([*TRACE, "--guard-rail", "1"], "--guard-rail: is '1'; must be a number above 1, or off"),
    ([*TRACE, "--guard-rail", "inf"], "--guard-rail: is 'inf'; must be a number above 1, or off"),
    ([*TRACE, "--head", "0"], "--head: is '0'; must be a whole number of at least 1"),
    ([*TRACE, "-o", "nowhere/plan.yaml"], "nowhere/plan.yaml: there is no folder nowhere"),
    ([*TRACE, "-o", "."], ".: Is a directory"),
]


@pytest.mark.parametrize(
    ("args", "message"), REFUSED, ids=[" ".join(map(str, a)) for a, _ in REFUSED]
)
def test_mistakes_are_one_line(folder: Path, args: Sequence[object], message: str) -> None:
    (folder / "empty.csv").write_text("")
    write_trace(folder / "long.csv", replace(traffic(2), prompt_lens=np.array([300, 400])))

    found = run("plan", "config.yaml", *args)

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr.startswith(f"Error: {message}")
    assert found.stderr.count("\n") == 1
