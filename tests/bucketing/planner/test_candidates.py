"""Candidates are few enough to be searched, and have what traffic and other rules need."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing import PlanLimits
from noria.bucketing.ladder import MAX_NUM_GRAPHS, SEQS, SPACING, TOKENS
from noria.bucketing.planner.candidates import (
    MAX_CONTEXTS,
    MAX_COVER_UNITS,
    MAX_DEMANDED,
    MAX_SIZES,
    MAX_SPACED,
    context_candidates,
    cover_candidates,
    seqs_candidates,
    size_candidates,
)
from noria.bucketing.planner.settings import PlanSettings
from noria.bucketing.sets.demand import DecodeDemand

LIMITS = st.builds(
    lambda tokens, seqs, fold, tile: PlanLimits(
        tokens * tile, seqs, tokens * tile, 1, 16, tile, fold
    ),
    st.sampled_from([1, 7, 100, 1000, 99_999]),
    st.sampled_from([1, 5, 20, 64, 256, 1000]),
    st.sampled_from([1, 8]),
    st.sampled_from([1, 128]),
)


@st.composite
def demands(draw: st.DrawFn, limits: PlanLimits) -> DecodeDemand:
    num = draw(st.integers(1, 30))
    sizes = draw(st.lists(st.integers(1, limits.max_num_seqs), min_size=num, max_size=num))
    contexts = draw(st.lists(st.integers(1, limits.max_model_len), min_size=num, max_size=num))
    return DecodeDemand.of(sizes, contexts)


@given(st.data(), LIMITS)
def test_decode_candidates_have_the_limits_rules_and_what_is_padded_most(
    data: st.DataObject, limits: PlanLimits
) -> None:
    demand = data.draw(demands(limits))
    plain, plain_contexts = seqs_candidates(limits), context_candidates(limits)

    sizes, contexts = seqs_candidates(limits, demand), context_candidates(limits, demand)

    assert (sizes[-1], contexts[-1]) == (limits.max_num_seqs, limits.max_model_len)
    assert set(plain) <= set(sizes)
    assert set(plain_contexts) <= set(contexts)
    assert len(contexts) <= MAX_CONTEXTS + MAX_DEMANDED
    unit = limits.block_size * limits.fold_blocks
    assert all(context % unit == 0 for context in contexts[:-1].tolist())
    rules = [rule(SEQS, limits.max_num_seqs) for rule in SPACING.values()]
    spaced = {size for rule in rules if len(rule) <= MAX_SPACED for size in rule}
    assert spaced <= set(sizes.tolist())
    more = set(sizes.tolist()) - set(plain.tolist()) - spaced
    assert len(more) <= MAX_DEMANDED
    assert more <= set(demand.num_seqs.tolist())
    if not more:
        return
    known = np.array(sorted({*plain.tolist(), *spaced}))

    def padding(size: int) -> float:
        steps = float(demand.weights[demand.num_seqs == size].sum())
        return steps * float(known[np.searchsorted(known, size)] - size)

    left = set(demand.num_seqs.tolist()) - set(sizes.tolist())
    assert all(padding(one) >= padding(other) for one in more for other in left)


@given(LIMITS, st.sampled_from([1, 16, 48, 128]), st.sampled_from([(), (640,)]))
def test_prefill_candidates_are_bounded_and_have_rules_and_must_haves(
    limits: PlanLimits, granularity: int, must_have: tuple[int, ...]
) -> None:
    limit = limits.max_prefill_tokens
    must_have = tuple(size for size in must_have if size < limit)
    asked = PlanSettings(granularity=granularity, must_have=must_have)

    sizes, covering = size_candidates(limits, asked), cover_candidates(limits, asked)

    for found in (sizes, covering):
        assert found[-1] == limit
        assert set(must_have) <= set(found.tolist())
        assert all(size % limits.prefill_tile == 0 for size in found[:-1].tolist())
    assert len(sizes) <= MAX_SIZES + 2 * MAX_NUM_GRAPHS
    assert len(covering) <= MAX_COVER_UNITS + len(must_have)
    assert set(SPACING["exponential"](TOKENS, limit)) <= set(sizes.tolist())


def test_of_very_many_multiples_small_sizes_are_fine_and_large_ones_as_fine_in_proportion() -> None:
    limits = PlanLimits(1 << 20, 1, 1 << 20, 1, 16)

    sizes = size_candidates(limits, PlanSettings(granularity=1))

    assert len(sizes) < 20_000
    assert np.diff(sizes[:1000]).max() == 1
    large = sizes[sizes > 1024]
    assert (np.diff(large) / large[:-1]).max() <= 1 / 512


@pytest.mark.parametrize("num_seqs", [32, 256])
def test_so_many_decode_candidates_can_be_searched(num_seqs: int) -> None:
    limits = PlanLimits(8192, num_seqs, 8192, 4, 16)
    demand = DecodeDemand.of(np.arange(1, num_seqs + 1), np.full(num_seqs, 8192))

    assert len(seqs_candidates(limits, demand)) <= 48
