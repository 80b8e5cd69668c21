"""Substitution improves sets until the deadline, and bounds what could be better."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
from decode_problems import AreaCosts, Problem, TableCosts, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.sets import substitution as substitution_module
from noria.bucketing.sets.decode import DecodeSet, best_ragged
from noria.bucketing.sets.demand import DecodeDemand
from noria.bucketing.sets.substitution import substitute


def improve(problem: Problem, start: DecodeSet, num_looks: float = float("inf")) -> DecodeSet:
    """Substitute with a clock that moves by one whenever it is looked at."""
    looks = count()
    return substitute(
        start,
        problem.demand,
        problem.costs,
        **problem.options,
        deadline_s=num_looks,
        clock=lambda: float(next(looks)),
    )


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_set_gets_no_worse_and_no_better_than_its_bound(problem: Problem) -> None:
    for start in best_ragged(problem.demand, problem.costs, **problem.options, max_num=5):
        found = improve(problem, start)

        best = problem.best(len(start.buckets))
        assert found.bound is not None
        assert found.bound <= best + 1e-9
        assert best - 1e-9 <= found.total <= start.total
        assert found.cost == pytest.approx(problem.cost(found.buckets))
        assert len(found.buckets) == len(start.buckets)
        assert problem.required <= set(found.buckets)


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("num", [2, 4, 7])
def test_the_worst_set_becomes_the_best(seed: int, num: int, with_fees: bool) -> None:
    problem = random_problem(seed, with_fees=with_fees)
    start = problem.worst_set(num)

    found = improve(problem, start)

    best = problem.best(num)
    assert best < start.total
    assert found.total == pytest.approx(best)
    assert found.bound is not None
    assert 0.9 * best <= found.bound <= best * (1 + 1e-12)


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
@pytest.mark.parametrize("seed", range(4))
def test_the_best_exchange_is_made_first(seed: int, with_fees: bool) -> None:
    problem = random_problem(seed, with_fees=with_fees)
    start = problem.worst_set(3)

    # Looks: for the deadline, before the first exchange, and the one that ends the search.
    found = improve(problem, start, num_looks=2)

    kept = [bucket in start.buckets for bucket in problem.candidates]
    is_near = (problem.members.sum(axis=1) == 3) & (problem.members[:, kept].sum(axis=1) >= 2)
    assert found.total == problem.totals[is_near].min() < start.total


def test_the_dearest_graph_goes_where_no_step_needs_any() -> None:
    fees = np.arange(16.0).reshape(4, 4)
    problem = Problem(DecodeDemand.of([1], [128], [0.0]), TableCosts(np.ones((4, 4))), (), fees)
    start = problem.set_of(((1, 512), (4, 512), (8, 1024)))

    found = improve(problem, start, num_looks=2)

    assert found.buckets == ((1, 128), (1, 512), (8, 1024))


def test_a_deadline_that_has_passed_returns_the_start() -> None:
    problem = random_problem(0)
    start = problem.worst_set(3)

    found = improve(problem, start, num_looks=0)

    assert found.buckets == start.buckets
    assert found.cost == start.cost
    assert found.bound is not None


def test_only_a_clock_that_ended_the_search_is_said_to_have_done_so() -> None:
    problem = random_problem(1)
    start = problem.worst_set(5)

    assert improve(problem, start, num_looks=5).is_cut_short
    assert not improve(problem, start).is_cut_short


def test_a_search_ends_after_so_much_work_whatever_the_clock_says() -> None:
    problem = random_problem(1)
    start = problem.worst_set(5)
    num = 16 * 16

    def search(max_looks: float, tick: float) -> DecodeSet:
        looks = count()
        clock = lambda: tick * next(looks)  # noqa: E731
        return substitute(
            start,
            problem.demand,
            problem.costs,
            **problem.options,
            max_looks=max_looks,
            deadline_s=1e6,
            clock=clock,
        )

    # One exchange is work enough, then the bound is looked for once.
    assert search(1, 0.0).total == improve(problem, start, num_looks=2).total
    totals = []
    for max_looks in range(0, 60 * num, 3 * num):
        fast, slow = search(max_looks, 0.0), search(max_looks, 1.0)
        assert fast == slow
        assert not fast.is_cut_short
        totals.append(fast.total)
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == start.total > totals[-1]
    assert totals[-1] == improve(problem, start).total


def test_more_time_never_makes_a_set_worse() -> None:
    problem = random_problem(1)
    start = problem.worst_set(5)

    totals = [improve(problem, start, num_looks=looks).total for looks in range(0, 120, 4)]

    assert totals == sorted(totals, reverse=True)
    assert totals[-1] < totals[0]


@pytest.mark.parametrize("seed", range(3))
def test_enough_time_gives_the_same_set_every_time(seed: int) -> None:
    problem = random_problem(seed)
    start = problem.worst_set(5)

    assert improve(problem, start) == improve(problem, start)


def large_problem(seed: int, num: int) -> Callable[[], DecodeSet]:
    """Return a substitution that exchanges of one graph do not solve."""
    random = np.random.default_rng(seed)
    demand = DecodeDemand.of(random.integers(1, 11, 300), random.integers(1, 11, 300))
    axes = {"num_seqs": np.arange(1, 11), "contexts": np.arange(1, 11)}
    start = best_ragged(demand, AreaCosts(), **axes, max_num=num)[-1]
    return lambda: substitute(start, demand, AreaCosts(), **axes, deadline_s=float("inf"))


@pytest.mark.parametrize(("seed", "num"), [(2, 5), (6, 8), (11, 5)])
def test_shaking_a_set_leads_out_of_what_no_exchange_improves(
    seed: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = large_problem(seed, num)
    shaken = run()
    monkeypatch.setattr(substitution_module, "NUM_SHAKES", 0)

    assert shaken.total < run().total


def test_chance_is_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(substitution_module, "NUM_SHAKES", 2)
    run = large_problem(2, 5)

    assert len({run() for _ in range(10)}) == 1


def test_a_set_without_what_must_be_there_is_refused() -> None:
    problem = random_problem(0)

    with pytest.raises(ValueError, match="8 x 1024 must be in the set"):
        improve(problem, DecodeSet(((1, 128), (8, 512)), 0.0, None, "ragged"))
