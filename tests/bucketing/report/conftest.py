"""A plan for little traffic, and its report."""

from __future__ import annotations

import numpy as np
import pytest
from given_costs import LaunchAndWork

from noria.bucketing import PlanLimits
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.planner.baselines import Baseline, baselines
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.planner import Planned, make_plan
from noria.bucketing.planner.problem import Problem
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.report.report import report_of, same_steps
from noria.bucketing.report.values import Report
from noria.bucketing.traces.trace import Trace


@pytest.fixture(scope="session")
def problem() -> Problem:
    random = np.random.default_rng(0)
    prompts = np.minimum(200, random.lognormal(3.5, 0.8, 80).astype(np.int64) + 1)
    return Problem(
        trace=Trace(prompts, random.integers(1, 50, 80), np.sort(random.uniform(0, 20, 80))),
        limits=PlanLimits(128, 8, 256, 4, 16),
        costs=LaunchAndWork(),
        fees=GraphFees(base_compile_s=1.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0),
        budget=Budget(workers=2),
        settings=PlanSettings(search_s=60.0),
    )


@pytest.fixture(scope="session")
def planned(problem: Problem) -> Planned:
    return make_plan(problem)


@pytest.fixture(scope="session")
def others(problem: Problem, planned: Planned) -> tuple[Baseline, ...]:
    return baselines(same_steps(problem, planned))


@pytest.fixture(scope="session")
def report(problem: Problem, planned: Planned, others: tuple[Baseline, ...]) -> Report:
    return report_of(problem, planned, others, trace_name="monday.csv", notes=["made up"])
