"""Products and lists are as good as the best of all, and say when they are."""

from __future__ import annotations

import numpy as np
import pytest
from decode_problems import CONTEXTS, NUM_SEQS, Problem, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.costs.cost import StepCosts
from noria.bucketing.sets import product as product_module
from noria.bucketing.sets.decode import best_list, best_product
from noria.bucketing.sets.demand import DecodeDemand


def is_product(buckets: tuple[tuple[int, int], ...]) -> bool:
    rows, columns = (set(axis) for axis in zip(*buckets, strict=True))
    return len(buckets) == len(rows) * len(columns)


@settings(max_examples=60, deadline=None)
@given(problems(is_rising=True))
def test_no_product_of_any_size_is_better(problem: Problem) -> None:
    smallest = min(len(buckets) for buckets, _ in problem.products)

    sets = best_product(problem.demand, problem.costs, **problem.options, max_num=12)

    assert len(sets) == 12 - smallest + 1
    for size, found in enumerate(sets, smallest):
        assert len(found.buckets) <= size
        assert is_product(found.buckets)
        assert problem.required <= set(found.buckets)
        assert found.cost == pytest.approx(problem.cost(found.buckets), abs=1e-9)
        best = problem.best_product(size)
        assert found.total == pytest.approx(best, abs=1e-9)
        assert found.bound == pytest.approx(best, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(problems())
def test_a_product_is_not_called_optimal_where_seconds_fall(problem: Problem) -> None:
    table = problem.costs.table
    falls = bool((np.diff(table, axis=0) < 0).any() or (np.diff(table, axis=1) < 0).any())

    sets = best_product(problem.demand, problem.costs, **problem.options, max_num=12)

    assert all((found.bound is None) == falls for found in sets)
    best = problem.best_product(12)
    for found in sets:
        assert found.total >= best - 1e-9
        assert found.cost == pytest.approx(problem.cost(found.buckets), abs=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_lists_improved_in_turns_are_products_too(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(seed, with_fees=seed % 2 == 1)
    exact = best_product(problem.demand, problem.costs, **problem.options, max_num=9)
    monkeypatch.setattr(product_module, "MAX_LISTS", 0)

    sets = best_product(problem.demand, problem.costs, **problem.options, max_num=9)

    for found, best in zip(sets, exact, strict=True):
        assert is_product(found.buckets)
        assert found.bound is None
        assert best.total <= found.total <= 1.1 * best.total


@pytest.mark.parametrize(("max_lists", "is_exact"), [(8, True), (7, False)])
def test_all_lists_are_tried_where_they_are_few(
    max_lists: int, is_exact: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = random_problem(0)
    monkeypatch.setattr(product_module, "MAX_LISTS", max_lists)

    found = best_product(problem.demand, problem.costs, **problem.axes, max_num=9)[-1]

    # Of 4 sizes with the last one among them there are 8 lists.
    assert (found.bound is not None) == is_exact


def test_many_chunks_of_lists_are_one_search(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(3)
    at_once = best_product(problem.demand, problem.costs, **problem.options, max_num=9)
    monkeypatch.setattr(product_module, "MAX_SEGMENTS", 1)

    assert best_product(problem.demand, problem.costs, **problem.options, max_num=9) == at_once


def test_a_product_that_must_have_too_much_is_refused() -> None:
    problem = random_problem(0)

    with pytest.raises(ValueError, match="needs more than 3"):
        best_product(problem.demand, problem.costs, **problem.axes, max_num=3, must_have=[(1, 128)])


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
def test_no_list_is_better(with_fees: bool) -> None:
    problem = random_problem(1)
    fees = np.array([5.0, 0.0, 9.0, 2.0]) if with_fees else None

    sets = best_list(
        problem.demand,
        problem.costs,
        num_seqs=NUM_SEQS,
        context_len=1024,
        max_num=3,
        must_have=[2],
        fees=fees,
    )

    assert [found.kind for found in sets] == ["list", "list"]
    for size, found in enumerate(sets, 2):
        products = [b for b, _ in problem.products if (2, 1024) in b and len(b) <= size]
        lists = [b for b in products if {context for _, context in b} == {1024}]
        paid = {1: 5.0, 2: 0.0, 4: 9.0, 8: 2.0} if with_fees else dict.fromkeys(NUM_SEQS, 0.0)
        totals = [problem.cost(b) + sum(paid[rows] for rows, _ in b) for b in lists]
        assert found.total == min(totals) == found.bound
        assert (2, 1024) in found.buckets


def test_a_long_list_is_exact_without_trying_all() -> None:
    class RowCosts(StepCosts):
        source, error_share = "tokens", None

        def prefill_s(self, num_tokens: object, prefix_lens: object = 0) -> np.ndarray:
            raise NotImplementedError

        def decode_s(self, num_seqs: object, context_lens: object) -> np.ndarray:
            return np.broadcast_arrays(num_seqs, context_lens)[0].astype(np.float64)

    demand = DecodeDemand.of(range(1, 257), [CONTEXTS[-1]] * 256)

    sets = best_list(
        demand, RowCosts(), num_seqs=range(1, 257), context_len=CONTEXTS[-1], max_num=4
    )

    # A flat demand is cut into equal parts: 64 steps of each of 64, 128, 192 and 256.
    assert [rows for rows, _ in sets[-1].buckets] == [64, 128, 192, 256]
    assert sets[-1].bound == sets[-1].cost == 64 * (64 + 128 + 192 + 256)
