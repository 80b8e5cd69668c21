"""The planner: a plan for any traffic, within the budget, that expects what a simulation finds."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from given_costs import LaunchAndWork
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import PlanFile, PlanFileError, PlanLimits
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.costs.saved import SavedCosts
from noria.bucketing.planner.about import about_plan, read_demand
from noria.bucketing.planner.baselines import BASELINES, baselines
from noria.bucketing.planner.budget import Budget, BudgetError
from noria.bucketing.planner.planner import Planned, make_plan
from noria.bucketing.planner.problem import Problem, plan_of
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.traces.trace import Trace

LIMITS = PlanLimits(128, 8, 256, 4, 16)
FEES = GraphFees(base_compile_s=1.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)


def traffic(num: int = 80, seed: int = 0, longest: int = 200) -> Trace:
    random = np.random.default_rng(seed)
    prompts = np.minimum(longest, random.lognormal(3.5, 0.8, num).astype(np.int64) + 1)
    outputs = random.integers(1, 50, num)
    return Trace(prompts, outputs, np.sort(random.uniform(0, 20, num)))


def problem(**changes: object) -> Problem:
    whole = Problem(traffic(), LIMITS, LaunchAndWork(), FEES, settings=PlanSettings(search_s=60.0))
    return replace(whole, **changes)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def planned() -> Planned:
    return make_plan(problem())


def test_the_same_problem_gives_the_same_plan(planned: Planned) -> None:
    assert make_plan(problem()).plan.to_mapping() == planned.plan.to_mapping()


def test_a_plan_can_be_written_and_read(planned: Planned) -> None:
    assert PlanFile.from_mapping(planned.plan.to_mapping()) == planned.plan


def test_what_is_expected_is_what_ran(planned: Planned) -> None:
    trace, expected = traffic(), planned.expected

    assert trace.output_lens is not None
    real = expected.prefill.num_tokens + expected.decode.num_tokens
    assert real == (trace.prompt_lens + trace.output_lens - 1).sum()
    seconds = expected.prefill.seconds + expected.decode.seconds
    # The simulation rounds the cached tokens that a step attends to.
    assert seconds == pytest.approx(expected.steps.busy_s, rel=0.03)
    # The order goes by the seconds of whole graphs, which have no prefix yet.
    assert planned.order[-1].seconds == pytest.approx(seconds, rel=0.05)


def test_a_plan_takes_less_than_the_defaults_of_others(planned: Planned) -> None:
    for baseline in baselines(problem()):
        assert planned.expected.steps.busy_s < baseline.expected.steps.busy_s, baseline.name


def test_the_decode_set_is_near_a_bound(planned: Planned) -> None:
    assert planned.decode_gap is not None
    assert 0 <= planned.decode_gap < 0.2


@pytest.mark.parametrize("policy", ["fill", "cover"])
@pytest.mark.parametrize("shape", ["ragged", "product", "list"])
def test_every_policy_and_shape_gives_a_plan_that_runs(policy: str, shape: str) -> None:
    asked = PlanSettings(policy=policy, decode_shape=shape, search_s=60.0)  # type: ignore[arg-type]

    found = make_plan(problem(settings=asked))

    assert found.plan.policy == policy
    pairs = {(one.bucket.size, one.bucket.context_len) for one in found.plan.decode}
    if shape != "ragged":
        sizes, contexts = (set(axis) for axis in zip(*pairs, strict=True))
        assert len(pairs) == len(sizes) * len(contexts)
        assert shape == "product" or contexts == {LIMITS.max_model_len}


def test_auto_is_the_better_policy(planned: Planned) -> None:
    totals = {
        policy: make_plan(problem(settings=PlanSettings(policy=policy, search_s=60.0)))  # type: ignore[arg-type]
        for policy in ("fill", "cover")
    }

    best = min(one.bill.total_s(Budget(), 20.0) for one in totals.values())
    assert planned.bill.total_s(Budget(), 20.0) == pytest.approx(best, rel=0.05)


@pytest.mark.parametrize(
    "budget",
    [Budget(max_num_graphs=4), Budget(compile_s=3.0, workers=2), Budget(num_bytes=5e6)],
    ids=["graphs", "seconds", "bytes"],
)
def test_a_plan_keeps_within_its_budget(budget: Budget) -> None:
    found = make_plan(problem(budget=budget))

    assert found.bill.num_graphs <= budget.max_num_graphs
    assert found.bill.compile_s / budget.workers <= budget.compile_s
    assert found.bill.num_bytes <= budget.num_bytes
    assert found.bill.num_graphs == len(found.plan.prefill) + len(found.plan.decode)


def test_a_budget_that_is_too_small_is_refused() -> None:
    with pytest.raises(BudgetError, match="within 1 graphs: the smallest takes 2 graphs"):
        make_plan(problem(budget=Budget(max_num_graphs=1)))


@pytest.mark.parametrize("policy", ["auto", "fill"])
def test_a_ratio_that_no_set_keeps_is_refused_with_one_that_some_do(policy: str) -> None:
    limits = PlanLimits(2048, 8, 2048, 4, 16)

    def asked(ratio: float) -> Problem:
        rules = PlanSettings(policy=policy, max_ratio=ratio, search_s=0.1)  # type: ignore[arg-type]
        return problem(limits=limits, settings=rules)

    with pytest.raises(BudgetError) as caught:
        make_plan(asked(1.01))

    text = str(caught.value)
    assert text.startswith("a guard-rail of 1.01 takes 128 prefill graphs from 16 to 2,048 tokens")
    fitting = float(text.rpartition(" ")[2])
    with pytest.raises(BudgetError, match="takes 25 prefill graphs"):
        make_plan(asked(fitting - 0.01))
    assert make_plan(asked(fitting)).plan.prefill


def test_a_shorter_horizon_gives_fewer_graphs() -> None:
    counts = [
        make_plan(problem(budget=Budget(horizon_s=seconds))).bill.num_graphs
        for seconds in (40.0, 400.0, 40_000.0)
    ]

    assert counts == sorted(counts)
    assert counts[0] < counts[-1]


@settings(max_examples=15, deadline=None)
@given(
    st.integers(0, 99),
    st.integers(1, 30),
    st.sampled_from([PlanLimits(64, 3, 100, 2, 16), PlanLimits(512, 9, 512, 8, 32, 128, 1)]),
)
def test_every_reachable_shape_has_a_graph(seed: int, num: int, limits: PlanLimits) -> None:
    trace = traffic(num, seed, longest=limits.max_model_len - 50)

    found = make_plan(problem(trace=trace, limits=limits))

    plan = found.plan.bucket_plan()
    for rows in range(1, plan.prefill[-1].num_tokens + 1):
        assert plan.pick_prefill(rows, limits.max_model_len).num_tokens >= rows
    for num_seqs in range(1, limits.max_num_seqs + 1):
        for context in range(1, limits.max_model_len + 1, 7):
            assert plan.pick_decode(num_seqs, context).num_seqs >= num_seqs
    assert all(one.bucket.size % limits.prefill_tile == 0 for one in found.plan.prefill)


def test_a_plan_by_hand_has_the_seconds_of_its_graphs() -> None:
    made = make_plan(problem()).plan
    buckets = [[one.bucket for one in phase] for phase in (made.prefill, made.decode)]

    again = plan_of(problem(), buckets[0], buckets[1], made.policy)

    assert (again.prefill, again.decode, again.chunks) == (made.prefill, made.decode, made.chunks)


def test_what_a_plan_says_of_itself_is_plain_and_complete(planned: Planned) -> None:
    costs = SavedCosts(LaunchAndWork(), FEES, {"kind": "given"})

    about = about_plan(
        problem(), planned, costs, trace_name="some.csv", baselines=baselines(problem())
    )

    assert json.loads(json.dumps(about, allow_nan=False)) == about
    demand = read_demand(about)
    assert demand.prefill_shapes == planned.demand.prefill_shapes
    assert demand.decode_shapes == planned.demand.decode_shapes
    assert demand.live_lens == pytest.approx(planned.demand.live_lens)
    assert set(about["baselines"]) == set(BASELINES)  # type: ignore[call-overload]
    whole = replace(planned.plan, about=about)
    assert PlanFile.from_mapping(whole.to_mapping()) == whole


@pytest.mark.parametrize(
    "steps", [None, {}, {"prefill": [[1]], "decode": [], "seconds": 0, "busy_s": 0}]
)
def test_steps_that_are_none_are_refused(steps: object) -> None:
    with pytest.raises(PlanFileError, match=r"about\.demand"):
        read_demand({"demand": steps})
