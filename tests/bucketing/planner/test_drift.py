"""What has become of a plan: regret, and whether a new one pays."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from given_costs import LaunchAndWork
from hypothesis import given, settings
from hypothesis import strategies as st
from small_plan import FEES, STEPS, small_plan, traffic

from noria.bucketing import PlanLimits
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.drift import Drift, drift
from noria.bucketing.planner.planner import make_plan
from noria.bucketing.planner.problem import Problem
from noria.bucketing.planner.saved_problem import saved_problem
from noria.bucketing.planner.settings import PlanSettings

PLAN = small_plan()
PROBLEM = saved_problem(PLAN)
LIMITS = PlanLimits(128, 8, 256, 4, 16)


def test_regret_is_what_a_new_plan_saves() -> None:
    found = drift(PROBLEM, PLAN, STEPS)

    # Afresh: 16, 48 and 64 rows, 1, 3 and 4 requests.
    assert (found.running.seconds, found.fresh.seconds) == (209, 3 * 16 + 2 * 48 + 26)
    assert found.regret_s == 39
    assert found.regret_share == pytest.approx(39 / 170)
    assert found.window_s == 209
    assert found.regret_per_hour_s == pytest.approx(39 / 209 * 3600)


def test_only_what_is_new_is_compiled() -> None:
    found = drift(PROBLEM, PLAN, STEPS)

    labels = {bucket.label for bucket in found.added}
    assert "prefill_t48_c64" in labels
    assert not {"prefill_t16_c64", "prefill_t64_c64", "decode_s4_c64"} & labels
    assert found.compile_s == len(labels) / 2  # seconds of two workers
    assert found.pays_back_s == pytest.approx(found.compile_s * 209 / 39)


def test_what_the_new_plan_has_no_use_for_is_dropped() -> None:
    steps = replace(STEPS, prefill_shapes={(64, 64, 64, 0): 3}, decode_shapes={(4, 64): 2})

    found = drift(PROBLEM, PLAN, steps)

    assert [bucket.label for bucket in found.dropped] == ["prefill_t16_c64", "decode_s1_c64"]
    assert (found.added, found.compile_s) == ((), 0.0)


def test_the_window_says_how_much_time_the_steps_stand_for() -> None:
    found = drift(PROBLEM, PLAN, STEPS, window_s=3600.0)

    assert found.regret_per_hour_s == 39
    assert found.pays_back_s == pytest.approx(found.compile_s * 3600 / 39)


@pytest.mark.parametrize(("horizon_s", "is_worth_it"), [(1e-3, False), (1e6, True)])
def test_a_new_plan_must_save_more_than_its_compiling_takes(
    horizon_s: float, is_worth_it: bool
) -> None:
    base = drift(PROBLEM, PLAN, STEPS)
    found = replace(base, horizon_s=horizon_s)

    assert found.is_worth_it is is_worth_it
    assert found.is_worth_it == (found.pays_back_s < found.horizon_s)


def test_a_plan_that_nothing_beats_is_kept() -> None:
    steps = replace(STEPS, prefill_shapes={(16, 16, 16, 0): 3}, decode_shapes={(1, 64): 2})

    found = drift(PROBLEM, PLAN, steps)

    assert (found.regret_s, found.pays_back_s, found.is_worth_it) == (0.0, inf, False)


def own_drift(seed: int, policy: str, **budget: float) -> Drift:
    problem = Problem(
        traffic(seed=seed),
        LIMITS,
        LaunchAndWork(),
        FEES,
        budget=Budget(**budget),  # type: ignore[arg-type]
        settings=PlanSettings(policy=policy, search_s=60.0),  # type: ignore[arg-type]
    )
    planned = make_plan(problem)
    return drift(replace(problem, trace=None), planned.plan, planned.demand)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["fill", "cover"]), st.sampled_from([6, 12, 40]))
def test_no_plan_regrets_the_steps_that_it_was_made_for(
    seed: int, policy: str, max_num_graphs: int
) -> None:
    found = own_drift(seed, policy, max_num_graphs=max_num_graphs)

    assert found.regret_share < 0.002


def test_a_plan_regrets_other_traffic() -> None:
    limits = LIMITS
    problem = Problem(
        traffic(longest=20),
        limits,
        LaunchAndWork(),
        FEES,
        budget=Budget(max_num_graphs=4),
        settings=PlanSettings(policy="fill"),
    )
    other = make_plan(replace(problem, trace=traffic(seed=1)))

    found = drift(replace(problem, trace=None), make_plan(problem).plan, other.demand)

    assert found.regret_share > 0.02
