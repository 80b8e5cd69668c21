"""What ``noria plan`` refuses of options and files of traffic, in one line."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plan_commands import run
from planned_traffic import traffic, write_trace


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


def test_a_proof_without_scipy_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy", None)

    found = run("plan", "config.yaml", "--trace", "trace.csv", "--prove")

    assert (found.exit_code, found.stdout) == (2, "")
    assert found.stderr == "Error: --prove: needs scipy; run: pip install 'noria[prove]'\n"


def test_no_other_prefix_may_be_asked(folder: Path) -> None:
    found = run("plan", "config.yaml", "--trace", "trace.csv", "--prefix", "live")

    assert found.exit_code == 2
    assert "'live' is not one of 'exact', 'bucketed', 'max'" in found.stderr


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
