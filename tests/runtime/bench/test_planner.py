"""``noria bench planner``: figures of recorded traffic, which others have published before."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from noria.bucketing.traces.csv_traces import trace_csv
from noria.bucketing.traces.families import draw_trace
from noria.runtime.bench.planner import bench_planner
from noria.runtime.bench.planner_waste import TracePlans
from noria.runtime.cli import main

TRACES = os.environ.get("NORIA_TRACES", "")
CONV, CODE, MOONCAKE = (
    "azure_llm_2023_conv",
    "azure_llm_2023_code",
    "mooncake_fast25_conversation",
)
PUBLISHED: Mapping[str, Mapping[str, float | tuple[int, float]]] = {
    CONV: {"pow2": 43.7, "best": (8, 16.1), "cover": 7.2, "decode": 8.7, "halves": 19.3},
    CODE: {"pow2": 38.3, "best": (7, 23.9), "cover": 4.2, "decode": 4.2, "halves": 21.0},
    MOONCAKE: {"pow2": 43.3, "best": (11, 21.3), "cover": 0.7, "decode": 25.9, "halves": 31.9},
}
"""Percent, of a study of these traces."""


@pytest.fixture(scope="module")
def found() -> Mapping[str, TracePlans]:
    if not TRACES:
        pytest.skip("NORIA_TRACES names no folder of recorded traffic")
    return {one.name: one for one in bench_planner(Path(TRACES), search_s=4.0)}


@pytest.mark.parametrize("name", PUBLISHED)
def test_waste_is_as_published(found: Mapping[str, TracePlans], name: str) -> None:
    plans, published = found[name], PUBLISHED[name]
    num, best = published["best"]  # type: ignore[misc]

    assert 100 * plans.prefill.doubling == pytest.approx(published["pow2"], abs=0.1)
    assert 100 * plans.prefill.optimal[num] == pytest.approx(best, abs=0.1)
    assert 100 * plans.prefill.halves.planned == pytest.approx(published["halves"], abs=0.1)
    assert 100 * plans.cover.covered == pytest.approx(published["cover"], abs=1.0)
    assert plans.decode is not None
    assert 100 * plans.decode.chosen[12] == pytest.approx(published["decode"], abs=1.0)


def test_every_trace_of_a_folder_is_planned(tmp_path: Path) -> None:
    for seed in (0, 1):
        trace = draw_trace("chat", num_requests=300, seed=seed)
        (tmp_path / f"chat{seed}.csv").write_text(trace_csv(trace))
    output = tmp_path / "found.json"

    result = CliRunner().invoke(
        main, ["bench", "planner", "--traces", str(tmp_path), "--search", "0.1", "--json", output]
    )

    assert result.exit_code == 0, result.output
    rows = json.loads(output.read_text())
    assert [row["name"] for row in rows] == ["chat0", "chat1"]
    for row in rows:
        assert row["name"] in result.stdout
        optimal = list(row["prefill"]["optimal"].values())
        assert optimal == sorted(optimal, reverse=True)
        assert row["prefill"]["halves"]["hindsight"] <= row["prefill"]["halves"]["planned"]
        assert row["cover"]["covered"] <= row["cover"]["padded"]
        chosen = list(row["decode"]["chosen"].values())
        assert chosen == sorted(chosen, reverse=True)


def test_a_folder_without_traces_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")

    result = CliRunner().invoke(main, ["bench", "planner", "--traces", str(tmp_path)])

    assert result.exit_code == 2
    assert (
        result.stderr
        == f"Error: {tmp_path} holds no trace: no file ends with .csv, .csv.gz, .jsonl, .jsonl.gz\n"
    )
