"""Demands count steps, whatever their order, and refuse what no step can need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.sets.demand import DecodeDemand, PrefillDemand

PAIRS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1)


@given(PAIRS)
def test_every_step_is_counted_once(pairs: list[tuple[int, int]]) -> None:
    num_seqs, contexts = zip(*pairs, strict=True)

    demand = DecodeDemand.of(num_seqs, contexts)

    found = list(zip(demand.num_seqs.tolist(), demand.context_lens.tolist(), strict=True))
    assert found == sorted(set(pairs))
    assert demand.weights.tolist() == [pairs.count(pair) for pair in found]


@given(PAIRS)
def test_weights_of_equal_sizes_add_up(pairs: list[tuple[int, int]]) -> None:
    sizes, weights = zip(*pairs, strict=True)

    demand = PrefillDemand.of(sizes, weights)

    assert (np.diff(demand.sizes) > 0).all()
    assert demand.weights.sum() == sum(weights)


@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.floats(0, 9)),
        min_size=1,
    )
)
def test_live_lens_of_equal_pairs_are_weighed(rows: list[tuple[int, int, int, float]]) -> None:
    num_seqs, contexts, weights, live_lens = zip(*rows, strict=True)

    demand = DecodeDemand.of(num_seqs, contexts, weights, live_lens)

    assert np.isfinite(demand.live_lens).all()
    tokens = sum(weight * live for _, _, weight, live in rows)
    assert demand.live_lens @ demand.weights == pytest.approx(tokens)
    assert demand.live_lens.min() >= min(live_lens) - 1e-9
    assert demand.live_lens.max() <= max(live_lens) + 1e-9


def test_requests_of_which_nothing_is_known_are_as_long_as_the_longest() -> None:
    assert DecodeDemand.of([1, 3, 1], [20, 30, 20]).live_lens.tolist() == [20, 30]


@pytest.mark.parametrize("sizes", [[0], [-1, 5], [[1]]])
def test_sizes_that_no_step_has_are_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="sizes of a demand"):
        PrefillDemand.of(sizes)


@pytest.mark.parametrize("weights", [[-1.0], [float("nan")], [float("inf")], [1.0, 2.0]])
def test_weights_that_are_no_counts_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="weights of a demand"):
        DecodeDemand.of([1], [1], weights)
