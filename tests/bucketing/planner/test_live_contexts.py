"""Kernels that read what is cached: graphs of short contexts save nothing, and none are planned."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from small_plan import traffic

from noria.bucketing import PlanLimits
from noria.bucketing.costs.cost import Floats, GraphFees, StepCosts
from noria.bucketing.planner.about import read_demand, steps_mapping
from noria.bucketing.planner.budget import Budget
from noria.bucketing.planner.evaluation import Shapes, real_decode_s, real_seconds, use_of_decode
from noria.bucketing.planner.options import Chooser
from noria.bucketing.planner.planner import Planned, make_plan
from noria.bucketing.planner.problem import Problem
from noria.bucketing.planner.settings import DecodeShape, PlanSettings
from noria.bucketing.planner.simulation import Steps
from noria.bucketing.planner.step_times import PlannedShapes, RealShapes
from noria.bucketing.report.dispatched import decode_step_s
from noria.bucketing.report.payers import decode_lots
from noria.bucketing.sets.decode import best_list, best_product, best_ragged, floor_cost
from noria.bucketing.sets.demand import DecodeDemand
from noria.bucketing.sets.proof import prove
from noria.bucketing.sets.substitution import substitute

LIMITS = PlanLimits(128, 8, 256, 4, 16)
FREE = GraphFees(base_compile_s=0.0, row_compile_s=0.0, base_bytes=1.0, row_bytes=0.0)


class Reading(StepCosts):
    """A launch, rows, and contexts: of the graph, or of what is cached."""

    source, error_share = "roofline", None

    def __init__(self, *, is_live: bool) -> None:
        self._is_live = is_live

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        rows, prefix = (np.asarray(one, dtype=float) for one in (num_tokens, prefix_lens))
        return (20 + rows + 0.01 * rows * prefix) * 1e-3

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        read = np.zeros_like(context_lens) if self._is_live else context_lens
        return (20 + np.asarray(num_seqs, dtype=float) + self._read(num_seqs, read)) * 1e-3

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        read = context_lens if self._is_live else np.zeros_like(context_lens)
        return self._read(num_seqs, read) * 1e-3

    @staticmethod
    def _read(num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        read: Floats = 0.1 * np.asarray(num_seqs, dtype=float) * np.asarray(context_lens)
        return read


LIVE, ALL = Reading(is_live=True), Reading(is_live=False)


def plan(
    costs: StepCosts, shape: DecodeShape = "ragged", seed: int = 0, budget: Budget | None = None
) -> Planned:
    asked = PlanSettings(decode_shape=shape, search_s=60.0)
    whole = Problem(traffic(40, seed), LIMITS, costs, FREE, settings=asked)
    return make_plan(whole if budget is None else replace(whole, budget=budget))


@settings(max_examples=12, deadline=None)
@given(
    shape=st.sampled_from(["ragged", "product"]),
    seed=st.integers(0, 99),
    max_num=st.integers(3, 12),
)
def test_no_context_is_planned_where_all_that_is_read_is_cached(
    shape: DecodeShape, seed: int, max_num: int
) -> None:
    found = plan(LIVE, shape, seed, Budget(max_num_graphs=max_num))

    assert {graph.bucket.context_len for graph in found.plan.decode} == {LIMITS.max_model_len}


@pytest.mark.parametrize("shape", ["ragged", "product"])
def test_contexts_are_planned_where_graphs_read_all_of_theirs(shape: DecodeShape) -> None:
    assert len({graph.bucket.context_len for graph in plan(ALL, shape).plan.decode}) > 1


def test_a_plan_expects_what_is_cached_to_be_read() -> None:
    found = plan(LIVE)
    shapes = Shapes.of_decode(found.expected.steps)
    live_s = float(LIVE.live_s(shapes.sizes, shapes.live_lens) @ shapes.weights)
    own_s = sum(
        one.num_steps * (20 + one.bucket.size) * 1e-3 for one in found.expected.decode.graphs
    )

    assert found.expected.decode.seconds == pytest.approx(own_s + live_s)
    seconds = found.expected.prefill.seconds + found.expected.decode.seconds
    # The simulation rounds the cached tokens that a step reads up, to 64.
    assert seconds < found.expected.steps.busy_s < 1.3 * seconds
    assert found.order[-1].seconds == pytest.approx(seconds, rel=0.05)
    assert found.bill.seconds == pytest.approx(seconds, rel=0.1)


STEPS = Steps({(8, 8, 8, 0): 2.0}, {(2, 64): 3.0, (5, 256): 4.0}, 9.0, 9.0, 0, {(2, 64): 40.0})


def test_each_step_pays_for_what_its_requests_have() -> None:
    buckets = plan(LIVE).plan.bucket_plan()
    shapes = Shapes.of_decode(STEPS)
    live = [0.2 * 40e-3, 0.5 * 256e-3]

    sent = [buckets.pick_decode(2, 64).num_seqs, buckets.pick_decode(5, 256).num_seqs]
    paid = [(20 + rows) * 1e-3 + one for rows, one in zip(sent, live, strict=True)]
    assert use_of_decode(buckets, shapes, LIVE).seconds == pytest.approx(3 * paid[0] + 4 * paid[1])
    assert decode_step_s(buckets, shapes, LIVE).tolist() == pytest.approx(paid)
    own = [22e-3 + live[0], 25e-3 + live[1]]
    assert real_decode_s(shapes, LIVE).tolist() == pytest.approx(own)
    assert use_of_decode(buckets, shapes, LIVE).floor_s == pytest.approx(3 * own[0] + 4 * own[1])
    assert real_seconds(STEPS, LIVE) == pytest.approx(2 * 28e-3 + 3 * own[0] + 4 * own[1])
    lots = decode_lots(shapes, shapes.sizes, LIVE, plan(LIVE).plan, None)
    assert lots.own_s.tolist() == pytest.approx(own)


def test_simulated_steps_pay_for_what_is_cached_whatever_the_graph() -> None:
    real, planned = (
        RealShapes(LIVE),
        PlannedShapes(plan(LIVE).plan.bucket_plan(), LIVE),
    )

    for times in (real, planned):
        more = times.decode_s(8, 256, 128.0) - times.decode_s(8, 256, 64.0)
        assert more == pytest.approx(0.8 * 64e-3)
        assert times.decode_s(8, 256, 64.0) == times.decode_s(8, 200, 64.0)


def test_steps_are_saved_with_what_is_cached() -> None:
    again = read_demand({"demand": steps_mapping(STEPS)})

    assert (again.decode_shapes, again.live_lens) == (STEPS.decode_shapes, STEPS.live_lens)
    assert again.decode.live_lens.tolist() == [40, 256]


DEMAND = DecodeDemand.of([1, 2, 4, 8], [64, 128, 64, 256], [5, 6, 7, 8], [10, 20, 30, 40])
AXES = {"num_seqs": [1, 2, 4, 8], "contexts": [64, 128, 256]}


def test_sets_cost_what_is_cached_besides_and_bounds_do_too() -> None:
    """The mixed kernels: rows and contexts of the graph, and some more for what is cached."""

    class Both(Reading):
        def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
            return self._read(num_seqs, context_lens)

    mixed, plain = Both(is_live=False), ALL
    live_s = float(mixed.live_s(DEMAND.num_seqs, DEMAND.live_lens) @ DEMAND.weights)
    assert live_s == pytest.approx(0.1 * (5 * 10 + 6 * 40 + 7 * 120 + 8 * 320))

    for find in (best_ragged, best_product):
        sets = zip(
            find(DEMAND, mixed, **AXES, max_num=6),  # type: ignore[arg-type]
            find(DEMAND, plain, **AXES, max_num=6),  # type: ignore[arg-type]
            strict=True,
        )
        for one, other in sets:
            assert one.buckets == other.buckets
            assert one.cost == pytest.approx(other.cost + live_s)
            assert (one.bound is None) == (other.bound is None)
    lists = [
        best_list(DEMAND, costs, num_seqs=AXES["num_seqs"], context_len=256, max_num=2)[-1]
        for costs in (mixed, plain)
    ]
    assert lists[0].cost == lists[0].bound == pytest.approx(lists[1].cost + live_s)
    floors = [floor_cost(DEMAND, costs, **AXES) for costs in (mixed, plain)]  # type: ignore[arg-type]
    assert floors[0] == pytest.approx(floors[1] + live_s)
    for better in (substitute, prove):
        start = best_ragged(DEMAND, mixed, **AXES, max_num=4)[-1]  # type: ignore[arg-type]
        found = better(start, DEMAND, mixed, **AXES)  # type: ignore[operator]
        assert found.bound is not None
        assert live_s < found.bound <= found.cost * (1 + 1e-9)
        assert found.gap == pytest.approx(1 - found.bound / found.cost, abs=1e-9)


def test_few_candidates_are_looked_at_where_contexts_save_nothing() -> None:
    def contexts(costs: StepCosts) -> int:
        chooser = Chooser(LIMITS, costs, PlanSettings(), lambda bucket: 0.0)
        return len(chooser.axes(DEMAND)[1])

    assert (contexts(LIVE), contexts(ALL)) == (1, 16)
