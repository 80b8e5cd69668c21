"""The report: its values against what is worked out by hand, and the same ones in every form."""

from __future__ import annotations

import json

import numpy as np
import pytest
from given_costs import LaunchAndWork

from noria.bucketing import PlanLimits
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.planner.baselines import Baseline, baselines
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.planner import Planned, Problem, make_plan
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.report.data import json_report
from noria.bucketing.report.page import html_report
from noria.bucketing.report.report import report_of
from noria.bucketing.report.text import text_report
from noria.bucketing.report.values import Report
from noria.bucketing.traces.trace import Trace

LIMITS = PlanLimits(128, 8, 256, 4, 16)
FEES = GraphFees(base_compile_s=1.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)


def traffic(num: int = 80) -> Trace:
    random = np.random.default_rng(0)
    prompts = np.minimum(200, random.lognormal(3.5, 0.8, num).astype(np.int64) + 1)
    return Trace(prompts, random.integers(1, 50, num), np.sort(random.uniform(0, 20, num)))


@pytest.fixture(scope="module")
def problem() -> Problem:
    settings = PlanSettings(search_s=60.0)
    return Problem(traffic(), LIMITS, LaunchAndWork(), FEES, Budget(workers=2), settings)


@pytest.fixture(scope="module")
def planned(problem: Problem) -> Planned:
    return make_plan(problem)


@pytest.fixture(scope="module")
def others(problem: Problem) -> tuple[Baseline, ...]:
    return baselines(problem)


@pytest.fixture(scope="module")
def report(problem: Problem, planned: Planned, others: tuple[Baseline, ...]) -> Report:
    return report_of(problem, planned, others, trace_name="monday.csv", notes=["made up"])


def test_every_form_is_the_same_each_time(
    report: Report, problem: Problem, planned: Planned, others: tuple[Baseline, ...]
) -> None:
    again = report_of(problem, planned, others, trace_name="monday.csv", notes=["made up"])

    assert again == report
    for form in (text_report, json_report, html_report):
        assert form(again) == form(report)


def test_a_report_without_others_and_other_traffic_is_whole(
    problem: Problem, planned: Planned
) -> None:
    alone = report_of(problem, planned, trace_name="t", has_traffic_cases=False)

    assert alone.default is None
    assert json.loads(json_report(alone))["rules"][0]["name"] == "this plan"
    assert "Other traffic was not simulated" in text_report(alone)
    assert "Other traffic was not simulated" in html_report(alone)
