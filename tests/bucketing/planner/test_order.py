"""The warm-up order: limits first, then what saves most per second of compiling."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import Bucket, BucketPlan, DecodeBucket, PrefillBucket
from noria.bucketing.planner.evaluation import Shapes
from noria.bucketing.planner.order import warm_up_order
from noria.bucketing.planner.simulation import Steps

SIZES = (8, 16, 32, 64)
PREFILL = tuple(PrefillBucket(size, 64) for size in SIZES)
DECODE = tuple(DecodeBucket(size, context) for size in (1, 2, 4) for context in (16, 64))
SECONDS = {one: float(one.num_rows * one.context_len) for one in (*PREFILL, *DECODE)}
PLAN = BucketPlan(PREFILL, DECODE, seconds=SECONDS)

PREFILL_STEPS = st.dictionaries(st.integers(1, 64), st.integers(1, 9), max_size=6)
DECODE_STEPS = st.dictionaries(
    st.tuples(st.integers(1, 4), st.integers(1, 64)), st.integers(1, 9), max_size=6
)


def one_second(bucket: Bucket) -> float:
    return 1.0


def total(plan: BucketPlan, prefill: dict[int, int], decode: dict[tuple[int, int], int]) -> float:
    """Return the seconds of all steps in the graphs that a plan has."""
    prompts = sum(n * SECONDS[plan.pick_prefill(size, size)] for size, n in prefill.items())
    return prompts + sum(n * SECONDS[plan.pick_decode(*shape)] for shape, n in decode.items())


def test_what_no_graph_saves_is_there_after_each() -> None:
    steps = Steps({(9, 9, 9, 0): 1}, {(1, 9): 1}, 0, 0, 0)
    shapes = Shapes.of_prefill(steps), Shapes.of_decode(steps)

    plain = warm_up_order(PLAN, *shapes, one_second)
    live = warm_up_order(PLAN, *shapes, one_second, 5.0)

    assert [one.seconds for one in live[1:]] == [one.seconds + 5 for one in plain[1:]]


@settings(deadline=None)
@given(PREFILL_STEPS, DECODE_STEPS)
def test_each_next_graph_saves_most(
    prefill: dict[int, int], decode: dict[tuple[int, int], int]
) -> None:
    steps = Steps(
        Counter({(size, size, size, 0): n for size, n in prefill.items()}), Counter(decode), 0, 0, 0
    )

    points = warm_up_order(PLAN, Shapes.of_prefill(steps), Shapes.of_decode(steps), one_second)

    labels = [point.label for point in points]
    assert sorted(labels) == sorted(one.label for one in PLAN.buckets)
    assert labels[:2] == [PREFILL[-1].label, DECODE[-1].label]
    for num in range(2, len(points) + 1):
        there = [one for one in PLAN.buckets if one.label in labels[:num]]
        assert points[num - 1].seconds == total(plan_of(there), prefill, decode)
        if num < len(points):
            rest = [one for one in PLAN.buckets if one not in there]
            best = min(total(plan_of([*there, one]), prefill, decode) for one in rest)
            assert points[num].seconds == best


def test_a_graph_that_compiles_long_must_save_more() -> None:
    steps = Steps(Counter({(8, 8, 8, 0): 10, (16, 16, 16, 0): 10}), Counter(), 0, 0, 0)
    shapes = Shapes.of_prefill(steps), Shapes.of_decode(steps)

    quick = warm_up_order(PLAN, *shapes, one_second)
    slow = warm_up_order(PLAN, *shapes, lambda one: 100.0 if one.size == 16 else 1.0)

    assert [point.label for point in quick[2:4]] == ["prefill_t16_c64", "prefill_t8_c64"]
    assert [point.label for point in slow[2:4]] == ["prefill_t32_c64", "prefill_t8_c64"]
    assert slow[-1].compile_s == quick[-1].compile_s + 99


def test_nothing_is_served_before_both_limit_graphs_are_there() -> None:
    steps = Steps(Counter({(8, 8, 8, 0): 1}), Counter({(1, 8): 1}), 0, 0, 0)

    points = warm_up_order(PLAN, Shapes.of_prefill(steps), Shapes.of_decode(steps), one_second)

    assert points[0].seconds == math.inf
    assert points[1].seconds == 64 * 64 + 4 * 64


def plan_of(buckets: list[Bucket]) -> BucketPlan:
    return BucketPlan(
        tuple(one for one in buckets if isinstance(one, PrefillBucket)),
        tuple(one for one in buckets if isinstance(one, DecodeBucket)),
        seconds=SECONDS,
    )


def test_graphs_that_cost_nothing_to_have_are_ordered_by_what_they_save() -> None:
    steps = Steps(Counter({(8, 8, 8, 0): 10}), Counter(), 0, 0, 0)
    shapes = Shapes.of_prefill(steps), Shapes.of_decode(steps)

    free = warm_up_order(PLAN, *shapes, lambda one: 0.0)

    assert free[2].label == "prefill_t8_c64"
    assert free[-1].compile_s == 0
