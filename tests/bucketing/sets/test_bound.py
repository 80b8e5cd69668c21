"""The dual bounds every set, whatever its prices, and comes close to the best."""

from __future__ import annotations

import numpy as np
import pytest
from decode_problems import Problem, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.sets.bound import dual_rounds
from noria.bucketing.sets.grid import Service


def rounds_of(problem: Problem, num: int) -> list[float]:
    service = Service.of(problem.grid)
    start = problem.grid.graphs(problem.worst_set(num).buckets)
    rounds = dual_rounds(service, num, service.total(start), start)
    return [found.bound for found in rounds]


@settings(max_examples=40, deadline=None)
@given(problems())
def test_no_round_exceeds_the_best_set(problem: Problem) -> None:
    for num in range(len(problem.required), len(problem.candidates) + 1):
        best = problem.best(num)

        assert max(rounds_of(problem, num)) <= best + 1e-9


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_comes_close_to_the_best_set(seed: int, with_fees: bool) -> None:
    problem = random_problem(seed, with_fees=with_fees)

    for num in (1, 2, 4, 8, 16):
        best = problem.best(num)
        assert max(rounds_of(problem, num)) >= 0.98 * best


def test_graphs_of_a_round_have_what_must_be_there() -> None:
    problem = random_problem(0)
    service = Service.of(problem.grid)
    start = np.array([3, 8, 15])

    for found in dual_rounds(service, 3, service.total(start), start):
        assert len(found.graphs) == 3
        assert 15 in found.graphs
