"""Substitution improves sets until the deadline, and bounds what could be better."""

from __future__ import annotations

from itertools import count

import pytest
from decode_problems import Problem, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.sets.decode import DecodeSet, best_ragged
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


def test_an_exchange_that_helps_is_found_without_bound_or_chance() -> None:
    problem = random_problem(0)
    start = problem.worst_set(3)

    # Looks: the deadline, and one before each of two exchanges.
    found = improve(problem, start, num_looks=3)

    kept = [bucket in start.buckets for bucket in problem.candidates]
    is_near = (problem.members.sum(axis=1) == 3) & (problem.members[:, kept].sum(axis=1) >= 2)
    assert found.total <= problem.totals[is_near].min() < start.total


def test_a_deadline_that_has_passed_returns_the_start() -> None:
    problem = random_problem(0)
    start = problem.worst_set(3)

    found = improve(problem, start, num_looks=0)

    assert found.buckets == start.buckets
    assert found.cost == start.cost
    assert found.bound is not None


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


def test_a_set_without_what_must_be_there_is_refused() -> None:
    problem = random_problem(0)

    with pytest.raises(ValueError, match="8 x 1024 must be in the set"):
        improve(problem, DecodeSet(((1, 128), (8, 512)), 0.0, None, "ragged"))
