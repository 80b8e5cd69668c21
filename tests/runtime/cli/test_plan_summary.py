"""What ``noria plan`` says of a plan that it makes from traffic."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_commands import make_plan, run
from planned_traffic import traffic, write_trace

from noria.runtime.plan_files import read_plan


def test_the_summary_says_what_is_needed(folder: Path) -> None:
    text = make_plan("--trace", "trace.csv", "--workers", "2").stdout
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
    found = json.loads(make_plan("--trace", "trace.csv", "--json").stdout)
    mapping = read_plan(folder / "plan.yaml").to_mapping()

    assert found["prefill"] == mapping["prefill"]
    assert 0.02 < found["summary"]["gain"] < 1
    assert found["about"]["trace"]["num_requests"] == 120
    assert "steps" not in found["about"]


def test_a_report_is_printed_or_written_as_a_page(folder: Path) -> None:
    summary = make_plan("--trace", "trace.csv", "--search", "10m").stdout
    options = ("--trace", "trace.csv", "--search", "10m", "--html", "report.html")
    with_page = make_plan(*options).stdout
    text = make_plan(*options, "--report").stdout
    data = json.loads(make_plan(*options, "--report", "--json").stdout)
    page = (folder / "report.html").read_bytes()

    assert with_page == summary
    assert text.startswith("Plan for trace.csv: 120 requests in ")
    assert f"\n{data['verdict']}\n" in text
    assert "\nCOVERAGE\n" in text
    assert f"{data['rules'][1]['saved_share']:.1%}" in summary.splitlines()[-1]
    assert f"with {data['rules'][1]['name']}, " in summary.splitlines()[-1]
    assert data["costs"]["notes"][0].startswith("seconds are measured")
    assert page.startswith(b"<!DOCTYPE html>")
    assert make_plan(*options).stdout == summary
    assert (folder / "report.html").read_bytes() == page


def test_a_proof_is_named(folder: Path) -> None:
    pytest.importorskip("scipy")

    text = make_plan("--trace", "trace.csv", "--search", "1ms", "--prove").stdout

    assert "decode proved to be the best of its number" in text


def test_a_small_gain_is_said_plainly(folder: Path) -> None:
    full = traffic(60)
    same = replace(full, prompt_lens=np.full(60, 128), output_lens=np.full(60, 1))
    write_trace(folder / "full.csv", same)

    text = make_plan("--trace", "full.csv").stdout

    assert "gain: under 2 %: the plan saves no" in text
    assert "that default would do" in text


def test_without_costs_a_cpu_says_what_to_run(folder: Path) -> None:
    found = run("plan", "config.yaml", "--trace", "trace.csv")

    assert found.exit_code == 0
    assert "note: nothing was measured: seconds are nominal" in found.stdout
    assert "not written: give -o FILE" in found.stdout
    assert "noria bench shapes CONFIG -o costs.json" in found.stdout
