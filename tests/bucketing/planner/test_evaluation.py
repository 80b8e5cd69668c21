"""The use of a plan: every step is counted in the graph that the engine would choose."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing import BucketPlan, DecodeBucket, PrefillBucket
from noria.bucketing.costs.cost import Floats, StepCosts
from noria.bucketing.planner.evaluation import Shapes, use_of_decode, use_of_prefill
from noria.bucketing.planner.simulation import Steps


class Areas(StepCosts):
    """A step costs its rows times its context, plus one."""

    source, error_share = "tokens", None

    def prefill_s(self, num_tokens: object, prefix_lens: object = 0) -> Floats:
        return 1.0 + np.asarray(num_tokens, dtype=float) + np.asarray(prefix_lens, dtype=float)

    def decode_s(self, num_seqs: object, context_lens: object) -> Floats:
        return 1.0 + np.asarray(num_seqs, dtype=float) * np.asarray(context_lens, dtype=float)


SHAPES = st.dictionaries(
    st.tuples(st.integers(1, 8), st.integers(1, 64)), st.integers(1, 5), min_size=1
)
GRAPHS = st.sets(st.tuples(st.integers(1, 8), st.integers(1, 64)), max_size=5)


def decode_plan(graphs: set[tuple[int, int]]) -> BucketPlan:
    buckets = [DecodeBucket(*shape) for shape in sorted({*graphs, (8, 64)})]
    prefill = PrefillBucket(64, 64)
    seconds = {one: float(Areas().decode_s(one.num_seqs, one.context_len)) for one in buckets}
    return BucketPlan((prefill,), tuple(buckets), seconds={**seconds, prefill: 65.0})


@settings(deadline=None)
@given(SHAPES, GRAPHS)
def test_decode_steps_run_where_the_engine_runs_them(
    shapes: dict[tuple[int, int], int], graphs: set[tuple[int, int]]
) -> None:
    plan = decode_plan(graphs)
    steps = Steps(Counter(), Counter(shapes), 0.0, 0.0, 0)

    use = use_of_decode(plan, Shapes.of_decode(steps), Areas())

    for graph in use.graphs:
        own = {s: n for s, n in shapes.items() if plan.pick_decode(*s) == graph.bucket}
        assert graph.num_steps == sum(own.values())
        assert graph.num_tokens == sum(num_seqs * n for (num_seqs, _), n in own.items())
        if graph.bucket != plan.decode[-1]:
            fewer = decode_plan(graphs - {(graph.bucket.size, graph.bucket.context_len)})
            total = use_of_decode(fewer, Shapes.of_decode(steps), Areas()).seconds
            assert graph.saved_s == pytest.approx(total - use.seconds)
        elif own:
            assert graph.saved_s == math.inf
    assert use.floor_s == sum(n * float(Areas().decode_s(*s)) for s, n in shapes.items())
    assert use.time_waste >= 0


def test_prefill_padding_is_counted_against_real_tokens() -> None:
    small, limit = PrefillBucket(16, 64), PrefillBucket(64, 64)
    plan = BucketPlan((small, limit), (DecodeBucket(8, 64),), seconds={small: 1.0, limit: 2.0})
    steps = Steps(Counter({(16, 12, 16, 4): 2, (17, 17, 20, 3): 1}), Counter(), 0.0, 0.0, 0)

    use = use_of_prefill(plan, Shapes.of_prefill(steps), Areas())

    assert [graph.num_steps for graph in use.graphs] == [2, 1]
    assert (use.num_tokens, use.num_padded_tokens) == (41, 96)
    assert use.waste == pytest.approx(96 / 41 - 1)
    assert use.seconds == 2 * (1 + 16 + 4) + (1 + 64 + 3)
    assert use.floor_s == 2 * 21 + 21
    assert use.graphs[0].saved_s == 2 * (64 - 16)


def test_nothing_ran() -> None:
    steps = Steps(Counter(), Counter(), 0.0, 0.0, 0)

    use = use_of_decode(decode_plan(set()), Shapes.of_decode(steps), Areas())

    assert (use.seconds, use.waste, use.time_waste) == (0, 0, 0)


def test_a_step_that_no_graph_holds_is_refused() -> None:
    steps = Steps(Counter(), Counter({(9, 64): 1}), 0.0, 0.0, 0)

    with pytest.raises(ValueError, match="larger than every graph"):
        use_of_decode(decode_plan(set()), Shapes.of_decode(steps), Areas())


def test_graphs_that_read_all_their_context_pay_for_it() -> None:
    small, limit = PrefillBucket(16, 64), PrefillBucket(64, 64)
    plan = BucketPlan((small, limit), (DecodeBucket(8, 64),), seconds={small: 1.0, limit: 2.0})
    steps = Steps(Counter({(16, 12, 16, 4): 2}), Counter(), 0.0, 0.0, 0)

    use = use_of_prefill(plan, Shapes.of_prefill(steps), Areas(), prefix="max")

    assert use.seconds == 2 * (1 + 16 + (64 - 16))
