"""Medians, spread, ratios, agreement, and the flag for a disturbed machine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from noria.runtime.bench.commands import write_json
from noria.runtime.bench.machine import Machine
from noria.runtime.bench.offline import PeerResult, Sample
from noria.runtime.bench.peer_process import Started, Variant
from noria.runtime.bench.report import (
    Rate,
    Report,
    agreement_of,
    build_report,
    is_loud,
    rate_of,
)
from noria.runtime.bench.roofline import ModelCost, stored_as
from noria.runtime.bench.workload import Workload

WORKLOAD = Workload(num_prompts=2, prompt_len=3, new_tokens=5, vocab_size=10)
COST = ModelCost(num_body_params=100, num_head_params=20)
MACHINE = Machine("a CPU", 2, 1e6, {"float32": 1800.0, "bfloat16": 3600.0}, 0.01)


def result_of(
    engine: str, seconds: tuple[float, ...] = (), activations: str = "float32", **other: Any
) -> PeerResult:
    others = other.pop("others", 0.0)
    return PeerResult(
        Variant(engine, stored_as(activations), activations),
        samples=[Sample(one, others) for one in seconds],
        **other,
    )


def report_of(*results: PeerResult) -> Report:
    return build_report(results, model="m", workload=WORKLOAD, cost=COST, machine=MACHINE)


def test_the_rate_is_the_median_run_with_its_spread() -> None:
    assert rate_of([2.0, 1.0, 4.0, 5.0, 10.0], 20) == Rate(5.0, 2.0, 20.0)
    assert rate_of([2.0, 1.0], 20) == Rate(15.0, 10.0, 20.0)
    assert rate_of([], 20) is None


def test_ratios_are_to_noria_with_the_same_activations() -> None:
    report = report_of(
        result_of("noria", (4.0,), "bfloat16"),
        result_of("noria", (10.0,), "float32"),
        result_of("other", (2.0,), "bfloat16"),
        result_of("other", (20.0,), "float32"),
    )

    assert [row.noria_ratio for row in report.rows] == [1.0, 1.0, 2.0, 0.5]


def test_without_a_run_of_noria_there_are_no_ratios() -> None:
    report = report_of(result_of("noria", problem="failed"), result_of("other", (2.0,)))

    assert [row.noria_ratio for row in report.rows] == [None, None]


def test_the_roof_share_is_the_rate_over_the_lowest_roof() -> None:
    (row,) = report_of(result_of("noria", (4.0,))).rows

    assert row.roofs.lowest == row.roofs.compute == 5.0
    assert row.roof_share == pytest.approx((10 / 4.0) / 5.0)


def test_agreement_is_the_share_of_prompts_with_norias_first_ids() -> None:
    noria = result_of("noria", first_ids=((1, 2), (3, 4), (5, 6), (7, 8)))
    other = result_of("other", first_ids=((1, 2), (3, 9), (5, 6), (7, 8)))
    bfloat16 = result_of("other", activations="bfloat16", first_ids=noria.first_ids)
    ended = result_of("ended", problem="crashed")
    results = [other, bfloat16, ended, noria]

    assert [agreement_of(one, results) for one in results] == [0.75, None, None, None]


def test_without_noria_the_first_other_engine_is_the_reference() -> None:
    a, b = result_of("a", first_ids=((1,),)), result_of("b", first_ids=((1,),))

    assert agreement_of(a, [a, b]) is None
    assert agreement_of(b, [a, b]) == 1.0


def test_more_than_3_percent_of_others_in_any_run_flags_the_row() -> None:
    quiet = result_of("noria", (1.0, 1.0), others=0.03)
    loud = result_of("other", (1.0, 1.0))
    loud.samples[1] = Sample(1.0, 0.031)

    rows = report_of(quiet, loud).rows

    assert [row.is_disturbed for row in rows] == [False, True]
    assert [row.others_share for row in rows] == [0.03, 0.031]


def test_an_unknown_share_of_others_flags_nothing() -> None:
    assert not is_loud(None)
    assert report_of(result_of("noria", (1.0,), others=None)).rows[0].others_share is None


def test_an_engine_without_runs_keeps_its_reason() -> None:
    (row,) = report_of(result_of("other", problem="not installed")).rows

    assert (row.problem, row.rate, row.version, row.roof_share) == (
        "not installed",
        None,
        None,
        None,
    )


def test_the_json_file_holds_workload_machine_and_rows(tmp_path: Any) -> None:
    started = Started("1.2", 3.5)
    report = report_of(result_of("noria", (4.0, 5.0), started=started, peak_rss_bytes=7))

    write_json(report, tmp_path / "report.json")
    found = json.loads((tmp_path / "report.json").read_text())

    assert found["workload"]["num_prompts"] == 2
    assert found["machine"]["flop_s"] == {"float32": 1800.0, "bfloat16": 3600.0}
    assert found["job_flop"] == 3600
    assert found["rows"][0]["seconds"] == [4.0, 5.0]
    assert found["rows"][0]["rate"] == {"median": 2.25, "lowest": 2.0, "highest": 2.5}
    assert found["rows"][0]["version"] == "1.2"
