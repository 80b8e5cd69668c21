"""What prefill pays for cached tokens: all parts of a planner mean the same by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from given_costs import LaunchAndWork

from noria.bucketing import PlanLimits
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.costs.reads import Prefix
from noria.bucketing.planner.evaluation import Shapes
from noria.bucketing.planner.outcome import prefill_time_wastes
from noria.bucketing.planner.planner import make_plan
from noria.bucketing.planner.problem import Problem, expectation
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.report.dispatched import prefill_step_s
from noria.bucketing.report.facts import prefix_facts
from noria.bucketing.traces.trace import Trace

LIMITS = PlanLimits(256, 4, 2048, 2, 16)
COSTS = LaunchAndWork()
FEES = GraphFees(base_compile_s=1.0, row_compile_s=0.0, base_bytes=1e6, row_bytes=0.0)
PREFIXES: tuple[Prefix, ...] = ("exact", "bucketed", "max")


def problem(prefix: Prefix) -> Problem:
    random = np.random.default_rng(1)
    trace = Trace(random.integers(1, 1500, 30), random.integers(1, 20, 30))
    asked = PlanSettings(prefix=prefix, search_s=60.0)
    return Problem(trace, LIMITS, COSTS, FEES, settings=asked)


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_plan_expects_what_its_simulation_and_its_report_say(prefix: Prefix) -> None:
    whole = problem(prefix)
    planned = make_plan(whole)
    expected, steps = planned.expected, planned.expected.steps
    shapes, buckets = Shapes.of_prefill(steps), planned.plan.bucket_plan()

    wastes = prefill_time_wastes(planned.plan, steps, COSTS)
    paid = prefill_step_s(buckets, shapes, COSTS, prefix) @ shapes.weights
    facts = {one.prefix: one.time_waste for one in prefix_facts(whole, planned)}

    assert expected.prefill.time_waste == pytest.approx(wastes[prefix])
    assert facts == pytest.approx(dict(wastes))
    assert expected.prefill.seconds == pytest.approx(paid)
    # The simulation rounds the cached tokens that a step attends to.
    seconds = expected.prefill.seconds + expected.decode.seconds
    assert steps.busy_s == pytest.approx(seconds, rel=0.05)


def test_who_reads_more_takes_longer_in_the_same_graphs() -> None:
    plan = make_plan(problem("exact")).plan
    steps = expectation(problem("exact"), plan).steps

    seconds = [
        expectation(replace(problem(prefix), steps=steps), plan).prefill.seconds
        for prefix in PREFIXES
    ]

    assert seconds[0] < seconds[1] < seconds[2]
