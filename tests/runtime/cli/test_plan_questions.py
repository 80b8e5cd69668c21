"""``noria whatif`` and ``noria drift``: what they print of a small plan, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from plans import plan_data
from row_seconds import row_seconds

from noria.bucketing import PlanFile
from noria.bucketing.costs.cost import GraphFees
from noria.runtime.cli import main
from noria.runtime.plan_files import write_plan

STEPS = {
    "seconds": 0.0,
    "busy_s": 0.0,
    "num_preemptions": 0,
    "prefill": "10 10 10 0 3\n40 40 40 0 2",
    "decode": "1 20 5\n3 30 7",
}
ABOUT: dict[str, Any] = {
    "costs": row_seconds(GraphFees(1.0, 0.0, 1e6, 0.0)).data,
    "settings": {
        "policy": "fill",
        "prefix": "exact",
        "decode_shape": "ragged",
        "max_ratio": None,
        "unseen_share": 0.0,
    },
    "budget": {"workers": 1, "horizon_s": 86400.0},
    "demand": STEPS,
}
COUNTERS = {
    "noria_counters": 1,
    "prefill": [[10, 10, 3, 3], [40, 40, 2, 2]],
    "decode": [[1, 20, 5], [3, 30, 7]],
}
HUGE = "9" * 30


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder with a plan, a plan that somebody wrote, counters and a trace."""
    monkeypatch.chdir(tmp_path)
    data = plan_data((16, 64), block_size=16)
    data["prefill"]["graphs"] = [[16, 64, 16.0], [64, 64, 64.0]]
    data["decode"]["graphs"] = [[1, 64, 1.0], [4, 64, 4.0]]
    write_plan(PlanFile.from_mapping(data | {"about": ABOUT}), Path("plan.yaml"))
    write_plan(PlanFile.from_mapping(data), Path("written.yaml"))
    Path("counters.json").write_text(json.dumps(COUNTERS))
    Path("none.json").write_text(json.dumps({"noria_counters": 1}))
    Path("large.json").write_text(json.dumps({**COUNTERS, "prefill": [[65, 65, 1, 1]]}))
    Path("lens.csv").write_text("size,count\n10,30\n70,2\n")
    Path("long.csv").write_text("size,count\n70,2\n")
    return tmp_path


def test_each_question_is_a_line() -> None:
    text = run(
        "whatif",
        "plan.yaml",
        "--drop",
        "prefill_t16_c64",
        "--add",
        "48",
        "--add",
        "3x32",
        "--max-graphs",
        2,
        "--max-model-len",
        32,
        "--compile-budget",
        "3s",
    ).stdout

    assert [line.split("  ")[0] for line in text.splitlines()] == [
        "what",
        "this plan",
        "--max-model-len 32",
        "--compile-budget 3.0 s",
        "--max-graphs 2",
        "--drop prefill_t16_c64",
        "--add 48",
        "--add 3x32",
    ]
    lines = {line.split("  ")[0]: " ".join(line.split()) for line in text.splitlines()}
    # By hand: 3 * 16 + 2 * 64 rows of prefill and 5 * 1 + 7 * 4 of decode.
    assert lines["this plan"].endswith("4 60.0% (60.0%) 26.9% (26.9%) 209.0 +0.0% 4.0 s")
    assert lines["--drop prefill_t16_c64"].endswith(" 353.0 +68.9% 3.0 s")
    assert lines["--add 48"].endswith(" 177.0 -15.3% 5.0 s")
    assert lines["--add 3x32"].endswith(" 0.0% (0.0%) 202.0 -3.3% 5.0 s")
    assert lines["--max-graphs 2"].endswith(" 368.0 +76.1% 2.0 s")


def test_answers_may_be_json() -> None:
    found = json.loads(run("whatif", "plan.yaml", "--add", "48", "--json").stdout)

    assert [(one["what"], one["seconds"]) for one in found] == [
        ("this plan", 209),
        ("--add 48", 177),
    ]
    assert found[1]["num_graphs"] == 5


def test_a_plan_may_be_asked_for_other_traffic() -> None:
    found = run("whatif", "plan.yaml", "--trace", "lens.csv", "--json")

    assert [one["seconds"] for one in json.loads(found.stdout)] == [30 * 16]
    assert "note: 2 of 32 requests (6.25%) have prompts of more than" in found.stderr
    assert "note: the traffic has lengths of prompts" in found.stderr


def test_synthetic_traffic_is_simulated() -> None:
    found = run("whatif", "plan.yaml", "--traffic", "uniform")

    assert found.exit_code == 0
    assert "this plan" in found.stdout


def test_drift_is_priced() -> None:
    text = run("drift", "plan.yaml", "counters.json").stdout

    # Afresh: 3 * 16 + 2 * 48 rows of prefill and 5 * 1 + 7 * 3 of decode.
    assert "plan.yaml         4  60.0% (60.0%)  26.9% (26.9%)    209.0" in text
    assert "170.0" in text
    assert f"regret: {39 / 170:.1%}, {39 / 209 * 3600:.1f} seconds of each hour" in text
    assert "add prefill_t48_c64, " in text
    assert "plan anew: it pays back in " in text


def test_a_plan_is_kept_for_a_short_horizon() -> None:
    text = run("drift", "plan.yaml", "counters.json", "--horizon", "1ms").stdout

    assert "\nkeep the plan: in 1.0 ms a new one saves no more than its compiling takes" in text


def test_the_window_makes_drift_rare_or_often() -> None:
    found = json.loads(
        run("drift", "plan.yaml", "counters.json", "--window", "1h", "--json").stdout
    )

    assert (found["regret_s"], found["regret_per_hour_s"], found["window_s"]) == (39, 39, 3600)
    assert found["is_worth_it"] is True
    assert found["pays_back_s"] == pytest.approx(found["compile_s"] * 3600 / 39)
    assert "prefill_t48_c64" in found["add"]


REFUSED: list[tuple[Sequence[str], str]] = [
    (["whatif", "nowhere.yaml"], "nowhere.yaml: No such file or directory"),
    (["whatif", "counters.json"], "counters.json: plan: lacks limits, noria_plan"),
    (["whatif", "written.yaml"], "written.yaml: about.costs: is missing; the plan was not made by"),
    (["whatif", "plan.yaml", "--drop", "x"], "--drop: x: is no graph of the plan, which has "),
    (
        ["whatif", "plan.yaml", "--drop", "decode_s4_c64"],
        "--drop: decode_s4_c64: cannot be dropped",
    ),
    (["whatif", "plan.yaml", "--add", "80"], "--add: 80: cannot be added: prefill.graphs: the lar"),
    (["whatif", "plan.yaml", "--add", "8x"], "--add: '8x': is no graph; write tokens of a prefill"),
    (["whatif", "plan.yaml", "--add", HUGE], f"--add: '{HUGE}': is no graph"),
    (["whatif", "plan.yaml", "--max-graphs", "1"], "--max-graphs: is '1'; must be a whole number"),
    (["whatif", "plan.yaml", "--max-model-len", "1"], "--max-model-len: is '1'; must be a whole"),
    (["whatif", "plan.yaml", "--compile-budget", "1s"], "--compile-budget: no plan keeps within 1"),
    (["whatif", "plan.yaml", "--trace", "nowhere.csv"], "nowhere.csv: No such file or directory"),
    (["whatif", "plan.yaml", "--trace", "long.csv"], "no prompt of the trace fits"),
    (["whatif", "plan.yaml", "--trace", "lens.csv", "--traffic", "chat"], "--trace: is given, and"),
    (["drift", "nowhere.yaml", "counters.json"], "nowhere.yaml: No such file or directory"),
    (["drift", "written.yaml", "counters.json"], "written.yaml: about.costs: is missing"),
    (["drift", "plan.yaml", "nowhere.json"], "nowhere.json: No such file or directory"),
    (["drift", "plan.yaml", "plan.yaml"], "plan.yaml"),
    (["drift", "plan.yaml", "none.json"], "none.json: the counters hold no prefill steps"),
    (["drift", "plan.yaml", "large.json"], "large.json: the counters hold a prefill step of 65"),
    (["drift", "plan.yaml", "counters.json", "--window", "0"], "--window: is '0'; must be a time"),
    (
        ["drift", "plan.yaml", "counters.json", "--horizon", "x"],
        "--horizon: is 'x'; must be a",
    ),
]


@pytest.mark.parametrize(("args", "message"), REFUSED, ids=[" ".join(args) for args, _ in REFUSED])
def test_mistakes_are_one_line(args: Sequence[str], message: str) -> None:
    found = run(*args)

    assert (found.exit_code, found.stdout) == (2, "")
    assert message in found.stderr
    assert found.stderr.splitlines()[-1].startswith("Error: ")
    assert sum(line.startswith("Error: ") for line in found.stderr.splitlines()) == 1
