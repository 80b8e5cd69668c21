"""Ragged rows are optimal for every number of graphs: as good as trying every set."""

from __future__ import annotations

import pytest
from decode_problems import Problem, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.sets.ragged import ragged_sets


def check_against_enumeration(problem: Problem) -> None:
    num_candidates = len(problem.candidates)
    found = ragged_sets(problem.grid, num_candidates + 1)

    sizes = range(len(problem.required), num_candidates + 1)
    assert [len(ragged.graphs) for ragged in found] == list(sizes)
    for size, ragged in zip(sizes, found, strict=True):
        buckets = problem.grid.buckets(ragged.graphs)
        assert problem.required <= set(buckets)
        assert ragged.total == problem.total_by_rows(buckets) == problem.best_by_rows(size)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_no_set_of_any_size_is_better_by_rows(problem: Problem) -> None:
    check_against_enumeration(problem)


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
def test_no_set_of_sixteen_graphs_is_better_by_rows(with_fees: bool) -> None:
    check_against_enumeration(random_problem(1, with_fees=with_fees))


def test_fewer_graphs_are_the_same_whatever_the_largest_number() -> None:
    grid = random_problem(2).grid

    all_sizes = [ragged.graphs.tolist() for ragged in ragged_sets(grid, 12)]

    assert [ragged.graphs.tolist() for ragged in ragged_sets(grid, 5)] == all_sizes[:5]
