"""What kernels read of contexts decides which part of a decode step is the graph's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.costs.cost import StepCosts
from noria.bucketing.costs.devices import device_sheet
from noria.bucketing.costs.fit import FittedCosts
from noria.bucketing.costs.measured import MeasuredCosts
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.reads import ALL_CONTEXT, DecodeReads
from noria.bucketing.costs.roofline import Roofline
from noria.bucketing.costs.saved import SavedCosts
from noria.bucketing.costs.table import CostTable
from noria.bucketing.report.sensitivity import Varied

LIVE, GATHER = DecodeReads("live", "live"), DecodeReads("live", "bucket")
MODEL = ModelShape(
    num_layers=4,
    hidden_size=64,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    vocab_size=100,
    windows=(96,),
)
SEQS, CONTEXTS = np.array([1, 3, 8])[:, None], np.array([1, 40, 512])


def roofline(reads: DecodeReads) -> Roofline:
    return Roofline.of(MODEL, device_sheet("cpu"), "bfloat16", reads=reads)


def decode(s: int, c: int) -> float:
    return 0.02 + 1e-3 * s + 4e-7 * s * c


def models(table: CostTable, reads: DecodeReads) -> list[StepCosts]:
    return [roofline(reads), MeasuredCosts(table, reads), FittedCosts.fit(table, reads)]


def whole(costs: StepCosts) -> np.ndarray[Any, Any]:
    return costs.decode_s(SEQS, CONTEXTS) + costs.live_s(SEQS, CONTEXTS)


@pytest.fixture
def table(make_table: Callable[..., CostTable]) -> CostTable:
    return make_table(lambda n, p: 0.01 + 1e-4 * n + 3e-8 * n * p, decode)


def test_a_full_step_takes_the_same_whichever_part_is_the_graphs(table: CostTable) -> None:
    for live, bucket in zip(models(table, LIVE), models(table, ALL_CONTEXT), strict=True):
        assert whole(live) == pytest.approx(whole(bucket), rel=1e-3), live.source
        assert not bucket.live_s(SEQS, CONTEXTS).any()


def test_where_all_is_live_the_context_of_a_graph_is_free(table: CostTable) -> None:
    for costs in models(table, LIVE):
        seconds = costs.decode_s(SEQS, CONTEXTS)

        assert (seconds == seconds[:, :1]).all(), costs.source
        assert (seconds > 0).all()
        assert (np.diff(costs.live_s(SEQS, CONTEXTS), axis=1) > 0).all(), costs.source


def test_what_is_computed_of_all_context_is_the_graphs_and_what_is_read_is_not() -> None:
    mixed, live, bucket = roofline(GATHER), roofline(LIVE), roofline(ALL_CONTEXT)
    flop = SEQS * MODEL.row_attention_flop(CONTEXTS) / bucket.flop_s
    read = SEQS * MODEL.kv_read_bytes(CONTEXTS) / bucket.bytes_s

    assert mixed.decode_s(SEQS, CONTEXTS) == pytest.approx(live.decode_s(SEQS, CONTEXTS) + flop)
    assert mixed.live_s(SEQS, CONTEXTS) == pytest.approx(read)
    assert live.live_s(SEQS, CONTEXTS) == pytest.approx(np.maximum(read, flop))


def test_a_planted_rule_of_what_is_cached_is_found(table: CostTable) -> None:
    costs = MeasuredCosts(table, LIVE)

    assert costs.decode_s(4, 512) == costs.decode_s(4, 2048) == pytest.approx(0.024)
    assert costs.live_s(3, 1000) == pytest.approx(3 * 1000 * 4e-7)


@pytest.mark.parametrize("make", [MeasuredCosts, FittedCosts.fit])
def test_steps_of_short_contexts_in_large_graphs_are_of_what_kernels_read(
    make_table: Callable[..., CostTable], make: Callable[..., StepCosts]
) -> None:
    # Each ran in a graph of twice its context: kernels that read all of it paid for that.
    plain = make_table(lambda n, p: 0.01 + 1e-4 * n + 3e-8 * n * p, decode)
    roomy, longer = (
        replace(
            plain, decode=tuple(replace(one, **{name: 2 * one.context}) for one in plain.decode)
        )
        for name in ("graph_context", "context")
    )

    for reads, same in ((ALL_CONTEXT, longer), (LIVE, plain)):
        assert whole(make(roomy, reads)) == pytest.approx(whole(make(same, reads)))
    assert whole(make(plain, LIVE)) != pytest.approx(whole(make(longer, LIVE)))


def test_steps_that_only_context_explains_still_take_time(
    make_table: Callable[..., CostTable],
) -> None:
    costs = MeasuredCosts(make_table(lambda n, p: 1.0 + n, lambda s, c: 1e-3 * s * c), LIVE)

    assert (costs.decode_s([1, 2, 4, 8], 2048) > 0).all()


@pytest.mark.parametrize("reads", [LIVE, GATHER, ALL_CONTEXT])
def test_what_is_read_is_saved_with_the_costs(table: CostTable, reads: DecodeReads) -> None:
    sheet = device_sheet("trn2")
    for costs in (
        SavedCosts.roofline(MODEL, sheet, "bfloat16", reads=reads),
        SavedCosts.of_table(table, reads=reads),
        SavedCosts.of_table(table, fitted=True, reads=reads),
    ):
        again = SavedCosts.read(costs.data).steps

        assert (again.decode_s(SEQS, CONTEXTS) == costs.steps.decode_s(SEQS, CONTEXTS)).all()
        assert (again.live_s(SEQS, CONTEXTS) == costs.steps.live_s(SEQS, CONTEXTS)).all()


@given(st.floats(0, 3))
def test_cached_tokens_vary_with_the_cost_of_context(factor: float) -> None:
    known = roofline(LIVE)
    varied = Varied(known, context=factor)

    assert varied.live_s(SEQS, CONTEXTS) == pytest.approx(factor * known.live_s(SEQS, CONTEXTS))
