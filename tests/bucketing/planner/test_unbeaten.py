"""No spacing rule that keeps the budget does better than a plan, for the steps of the report."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from given_costs import LaunchAndWork, RowsOnly
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import PlanLimits
from noria.bucketing.costs.cost import GraphFees, StepCosts
from noria.bucketing.planner import options, planner
from noria.bucketing.planner.baselines import baselines
from noria.bucketing.planner.budget import Budget, BudgetError
from noria.bucketing.planner.candidates import seqs_candidates
from noria.bucketing.planner.evaluation import real_seconds
from noria.bucketing.planner.given_steps import steps_of_lengths
from noria.bucketing.planner.planner import Planned, make_plan
from noria.bucketing.planner.problem import Expectation, Problem, expectation
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.traces.trace import Trace

LIMITS = (
    PlanLimits(512, 20, 512, 8, 16),
    PlanLimits(256, 33, 2048, 4, 32),
    PlanLimits(512, 12, 1024, 8, 16, 64, 1),
    PlanLimits(100, 3, 100, 2, 16),
)
COSTS: tuple[StepCosts, ...] = (RowsOnly(), LaunchAndWork(0.0), LaunchAndWork(200.0))
FEES = GraphFees(base_compile_s=2.0, row_compile_s=0.01, base_bytes=1e6, row_bytes=1e3)


def traffic(seed: int, num: int, limits: PlanLimits, *, waits: bool) -> Trace:
    """Return requests some of whose sizes come again and again, just above or at a usual one."""
    random = np.random.default_rng(seed)
    usual = random.choice([12, 20, 100, 129, 250, 384], 3)
    longest = limits.max_model_len - 40
    prompts = np.where(
        random.random(num) < 0.5, random.choice(usual, num), random.lognormal(4, 1, num)
    ).astype(np.int64)
    arrivals = None if waits else np.sort(random.uniform(0, num / 4, num))
    return Trace(np.clip(prompts, 1, longest), random.integers(1, 40, num), arrivals)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    limits, costs = draw(st.sampled_from(LIMITS)), draw(st.sampled_from(COSTS))
    trace = traffic(
        draw(st.integers(0, 999)), draw(st.integers(1, 60)), limits, waits=draw(st.booleans())
    )
    budget = Budget(
        compile_s=draw(st.sampled_from([20.0, 60.0, inf])),
        workers=draw(st.integers(1, 4)),
        num_bytes=draw(st.sampled_from([2e7, inf])),
        max_num_graphs=draw(st.sampled_from([6, 13, inf])),
        horizon_s=draw(st.sampled_from([60.0, 3600.0, 1e6])),
    )
    asked = PlanSettings(
        policy=draw(st.sampled_from(["auto", "fill"])),
        granularity=draw(st.sampled_from([16, 48])),
        unseen_share=draw(st.sampled_from([0.0, 0.002, 0.2])),
        search_s=0.02,
    )
    whole = Problem(trace, limits, costs, FEES, budget, asked)
    if draw(st.booleans()):
        return whole
    return replace(whole, steps=steps_of_lengths(trace, limits))


def total_s(problem: Problem, planned: Planned, expected: Expectation, compile_s: float) -> float:
    """Seconds of serving and compiling over the horizon."""
    steps, budget = planned.demand, problem.budget
    window_s = max(steps.seconds, steps.busy_s or real_seconds(steps, problem.costs))
    seconds = expected.prefill.seconds + expected.decode.seconds
    return seconds * budget.horizon_s / window_s + compile_s / budget.workers


def winners(problem: Problem) -> list[str]:
    """Return the rules within the budget that do better than the plan."""
    planned = make_plan(problem)
    same, budget = replace(problem, steps=planned.demand), problem.budget
    own = total_s(problem, planned, expectation(same, planned.plan), planned.bill.compile_s)
    return [
        rule.name
        for rule in baselines(same)
        if rule.compile_s / budget.workers <= budget.compile_s
        and rule.num_bytes <= budget.num_bytes
        and rule.num_graphs <= budget.max_num_graphs
        and total_s(problem, planned, rule.expected, rule.compile_s) < own * (1 - 1e-12)
    ]


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_rule_is_better_than_a_plan(problem: Problem) -> None:
    try:
        assert winners(problem) == []
    except BudgetError:
        assert problem.budget.compile_s == 20.0 or problem.budget.num_bytes == 2e7


def twelve_at_once() -> Problem:
    """Requests of the size of a rule that lies between those of few requests and of CUDA graphs."""
    trace = Trace(np.full(12, 100), np.full(12, 30))
    return Problem(trace, LIMITS[0], RowsOnly(), FEES, settings=PlanSettings("fill", search_s=0.1))


def what_may_come() -> Problem:
    """A plan for anything but the traffic, all of which has sizes of rules."""
    trace = Trace(np.full(12, 128), np.full(12, 2))
    asked = PlanSettings("fill", unseen_share=1.0, search_s=0.1)
    budget = Budget(max_num_graphs=13)
    return Problem(trace, LIMITS[2], RowsOnly(), FEES, budget, asked)


def test_a_size_that_only_a_rule_and_the_traffic_have_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert winners(twelve_at_once()) == []

    monkeypatch.setattr(options, "spaced_sizes", lambda axis, limit: {})
    monkeypatch.setattr(options, "seqs_candidates", lambda limits, demand: seqs_candidates(limits))
    assert winners(twelve_at_once()) == ["Gaudi (exponential)"]


def test_what_no_choice_weighed_is_weighed_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert winners(what_may_come()) == []

    monkeypatch.setattr(planner, "_unbeaten", lambda problem, found: found)
    assert winners(what_may_come()) != []
