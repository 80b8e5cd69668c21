"""The budget: the best pair of options that keeps within it, of all there are."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from noria.bucketing import DecodeBucket, PrefillBucket
from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.planner.budget import (
    Bill,
    Budget,
    BudgetError,
    Option,
    bills,
    choose,
    fits,
    pareto,
)

FEES = GraphFees(base_compile_s=1.0, row_compile_s=0.5, base_bytes=100.0, row_bytes=10.0)


def options(phase: type[PrefillBucket] | type[DecodeBucket]) -> st.SearchStrategy[list[Option]]:
    sets = st.sets(st.integers(1, 20), min_size=1, max_size=5)
    one = st.builds(
        lambda sizes, seconds: Option(tuple(phase(size, 64) for size in sorted(sizes)), seconds),
        sets,
        st.integers(1, 50).map(float),
    )
    return st.lists(one, min_size=1, max_size=6)


BUDGETS = st.builds(
    Budget,
    compile_s=st.sampled_from([5.0, 20.0, inf]),
    workers=st.integers(1, 3),
    num_bytes=st.sampled_from([500.0, 1500.0, inf]),
    max_num_graphs=st.sampled_from([2, 5, inf]),
    horizon_s=st.sampled_from([1.0, 100.0, 1e6]),
)


def compile_s(*sets: Option) -> float:
    return sum(1 + 0.5 * bucket.size for one in sets for bucket in one.buckets)


def num_bytes(*sets: Option) -> float:
    return sum(100 + 10 * bucket.size for one in sets for bucket in one.buckets)


@settings(deadline=None)
@given(options(PrefillBucket), options(DecodeBucket), BUDGETS)
def test_the_choice_is_the_best_of_all_pairs_within_the_budget(
    prefill: list[Option], decode: list[Option], budget: Budget
) -> None:
    def total(pair: tuple[Option, Option]) -> float:
        seconds = sum(one.seconds for one in pair)
        return seconds * budget.horizon_s / 10.0 + compile_s(*pair) / budget.workers

    def fits(pair: tuple[Option, Option]) -> bool:
        return (
            compile_s(*pair) / budget.workers <= budget.compile_s
            and num_bytes(*pair) <= budget.num_bytes
            and sum(len(one.buckets) for one in pair) <= budget.max_num_graphs
        )

    fitting = [pair for pair in product(prefill, decode) if fits(pair)]
    if not fitting:
        with pytest.raises(BudgetError, match="no plan keeps within"):
            choose(bills(prefill, decode, FEES), budget, 10.0)
        return

    chosen = choose(bills(prefill, decode, FEES), budget, 10.0)

    assert chosen.total_s(budget, 10.0) == pytest.approx(min(map(total, fitting)))
    assert fits((chosen.prefill, chosen.decode))


@settings(deadline=None)
@given(options(PrefillBucket), options(DecodeBucket))
def test_no_pair_beats_the_front(prefill: list[Option], decode: list[Option]) -> None:
    every = bills(prefill, decode, FEES)

    front = pareto(every)

    def beats(one: Bill, other: Bill) -> bool:
        return one.compile_s <= other.compile_s and one.seconds < other.seconds

    assert not any(beats(one, other) for one in every for other in front)
    assert all(
        any(f.compile_s <= b.compile_s and f.seconds <= b.seconds for f in front) for b in every
    )


def test_a_longer_horizon_pays_for_more_graphs() -> None:
    few = Option((PrefillBucket(64, 64),), 10.0)
    many = Option((PrefillBucket(16, 64), PrefillBucket(64, 64)), 9.0)
    decode = Option((DecodeBucket(1, 64),), 1.0)
    every = bills([few, many], [decode], FEES)

    short = choose(every, Budget(horizon_s=80.0), 10.0)
    long = choose(every, Budget(horizon_s=100.0), 10.0)

    assert (short.prefill, long.prefill) == (few, many)


@pytest.mark.parametrize("name", ["compile_s", "workers", "num_bytes", "horizon_s"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_an_amount_that_is_none_is_refused(name: str, value: float) -> None:
    with pytest.raises(BudgetError, match=f"{name} of a budget must be more than 0"):
        Budget(**{name: value})


@settings(deadline=None)
@given(options(PrefillBucket), options(DecodeBucket), BUDGETS, st.sampled_from([0.001, 0.1, 1.0]))
def test_each_graph_saves_its_share_unless_a_rule_would_win(
    prefill: list[Option], decode: list[Option], budget: Budget, share: float
) -> None:
    prefill[0] = replace(prefill[0], rule="linear")
    decode[-1] = replace(decode[-1], rule="linear")
    every = bills(prefill, decode, FEES)
    fitting = [bill for bill in every if fits(bill, budget)]
    assume(fitting)

    chosen = choose(every, budget, 10.0, min_saving=share)

    def total(bill: Bill) -> float:
        return bill.total_s(budget, 10.0)

    price = share * min(bill.seconds for bill in fitting) * budget.horizon_s / 10.0
    most = min((total(bill) for bill in fitting if bill.rule == "linear"), default=inf)
    assert total(chosen) <= most
    for bill in fitting:
        if total(bill) <= most:
            num_more = chosen.num_graphs - bill.num_graphs
            assert total(bill) - total(chosen) >= price * num_more - 1e-6 * total(bill)


def test_a_graph_that_saves_less_than_its_share_is_not_had() -> None:
    few = Option((PrefillBucket(64, 64),), 999.0)
    many = Option((PrefillBucket(16, 64), PrefillBucket(64, 64)), 998.0)
    decode = Option((DecodeBucket(1, 64),), 1.0)
    every, long = bills([few, many], [decode], FEES), Budget(horizon_s=1e9)

    assert choose(every, long, 10.0).prefill == many
    assert choose(every, long, 10.0, min_saving=0.0010).prefill == many
    assert choose(every, long, 10.0, min_saving=0.0011).prefill == few


def test_covering_that_saves_less_than_a_graph_must_is_not_done() -> None:
    padded = Option((PrefillBucket(64, 64),), 999.0)
    covered = Option((PrefillBucket(32, 64),), 998.0, "cover")
    decode = Option((DecodeBucket(1, 64),), 1.0)
    every = bills([padded, covered], [decode], FEES)

    assert choose(every, Budget(horizon_s=1e9), 10.0, min_saving=0.0010).prefill == covered
    assert choose(every, Budget(horizon_s=1e9), 10.0, min_saving=0.0011).prefill == padded


def test_a_share_is_not_asked_for_where_a_rule_would_win() -> None:
    few = Option((PrefillBucket(64, 64),), 999.0)
    many = Option((PrefillBucket(16, 64), PrefillBucket(64, 64)), 998.0)
    rule = Option((*many.buckets, PrefillBucket(32, 64)), 998.5, rule="linear")
    decode = Option((DecodeBucket(1, 64),), 1.0, rule="linear")

    chosen = choose(bills([few, many, rule], [decode], FEES), Budget(), 10.0, min_saving=0.1)

    assert chosen.prefill == many
