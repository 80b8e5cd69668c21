"""Ragged sets of every size: what they cost, where their steps run, and what they must have."""

from __future__ import annotations

import numpy as np
import pytest
from decode_problems import CONTEXTS, NUM_SEQS, Problem, TableCosts, problems, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from noria.bucketing.sets.decode import best_ragged, dispatch, floor_cost
from noria.bucketing.sets.demand import DecodeDemand

SEEDS = pytest.mark.parametrize("seed", range(4))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_each_size_has_a_set_that_is_at_least_as_good_as_by_rows(problem: Problem) -> None:
    sets = best_ragged(problem.demand, problem.costs, **problem.options, max_num=12)

    sizes = range(len(problem.required), min(12, len(problem.candidates)) + 1)
    assert [len(found.buckets) for found in sets] == list(sizes)
    for size, found in zip(sizes, sets, strict=True):
        assert list(found.buckets) == sorted(set(found.buckets))
        assert problem.required <= set(found.buckets)
        assert found.cost == problem.cost(found.buckets)
        assert found.fees == problem.fee(found.buckets)
        assert found.total <= problem.best_by_rows(size)
        assert found.total >= problem.best(size)


@SEEDS
def test_another_graph_never_makes_a_set_worse(seed: int) -> None:
    problem = random_problem(seed)

    sets = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=16)

    assert (np.diff([found.cost for found in sets]) <= 0).all()
    assert sets[0].buckets == ((8, 1024),)
    assert sets[-1].cost == floor_cost(problem.demand, problem.costs, **problem.axes)


@SEEDS
@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
def test_no_set_of_sixteen_graphs_is_worse_than_the_best_by_rows(
    seed: int, with_fees: bool
) -> None:
    problem = random_problem(seed, with_fees=with_fees)

    sets = best_ragged(problem.demand, problem.costs, **problem.options, max_num=16)

    assert all(found.total <= problem.best_by_rows(size) for size, found in enumerate(sets, 1))


@settings(deadline=None)
@given(problems())
def test_no_set_is_cheaper_than_all_graphs_together(problem: Problem) -> None:
    floor = floor_cost(problem.demand, problem.costs, **problem.axes)

    assert floor == problem.cost(problem.candidates)


def test_steps_go_to_a_larger_row_where_that_is_cheaper() -> None:
    table = np.array([[1.0, 5.0], [2.0, 6.0]])
    demand = DecodeDemand.of([1, 1, 2, 2], [128, 256, 128, 256], [1, 9, 1, 9])
    axes = {"num_seqs": NUM_SEQS[:2], "contexts": CONTEXTS[:2]}

    two = best_ragged(demand, TableCosts(table), **axes, max_num=2)[-1]

    # By rows (1, 256) saves 9 - 0; the step of (1, 128) is not worth a row of its own.
    assert two.buckets == ((1, 256), (2, 256))
    assert best_ragged(demand, TableCosts(table), **axes, max_num=3)[-1].cost == 9 * 5 + 9 * 6 + 4


def test_fees_decide_how_many_graphs_pay() -> None:
    problem = random_problem(0)

    def best_size(fee: float) -> int:
        fees = np.full((4, 4), fee)
        sets = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=16, fees=fees)
        return len(min(sets, key=lambda found: found.total).buckets)

    sizes = [best_size(fee) for fee in (0.0, 50.0, 500.0, 1e6)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] > sizes[-1] == 1


def test_fees_differ_by_graph() -> None:
    problem = random_problem(0)
    dear = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=4)[-1].buckets[0]
    fees = np.zeros((4, 4))
    fees[NUM_SEQS.index(dear[0]), CONTEXTS.index(dear[1])] = 1e6

    found = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=4, fees=fees)[-1]

    assert dear not in found.buckets
    assert found.fees == 0.0


def test_needs_between_candidates_are_rounded_up() -> None:
    costs = TableCosts(np.arange(16.0).reshape(4, 4) + 1)
    axes = {"num_seqs": NUM_SEQS, "contexts": CONTEXTS}
    exact, between = DecodeDemand.of([4], [512]), DecodeDemand.of([3], [257])

    assert best_ragged(between, costs, **axes, max_num=3) == best_ragged(
        exact, costs, **axes, max_num=3
    )


@SEEDS
def test_the_same_demand_gives_the_same_sets(seed: int) -> None:
    problem = random_problem(seed)
    steps = problem.steps()[::-1]
    turned = DecodeDemand.of(*map(list, zip(*steps, strict=True)))

    sets = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=9)

    assert best_ragged(turned, problem.costs, **problem.axes, max_num=9) == sets


BUCKETS = st.lists(
    st.tuples(st.sampled_from(NUM_SEQS), st.sampled_from(CONTEXTS)), min_size=1, unique=True
)


@given(BUCKETS, st.integers(1, 8), st.integers(1, 1024), st.integers(0, 99))
def test_dispatch_takes_the_cheapest_graph_that_fits(
    buckets: list[tuple[int, int]], num_seqs: int, context_len: int, seed: int
) -> None:
    buckets = sorted({*buckets, (8, 1024)})
    costs = TableCosts(np.random.default_rng(seed).integers(0, 4, (4, 4)).astype(np.float64))

    place = int(dispatch(buckets, costs, [num_seqs], [context_len])[0])

    fits = [b for b in buckets if b[0] >= num_seqs and b[1] >= context_len]
    cheapest = min(float(costs.decode_s(*b)) for b in fits)
    assert buckets[place] == next(b for b in fits if costs.decode_s(*b) == cheapest)


@pytest.mark.parametrize("need", [(9, 1), (1, 1025)])
def test_dispatch_refuses_a_step_that_fits_nowhere(need: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="needs more than every graph has"):
        dispatch([(8, 128), (8, 1024)], TableCosts(np.ones((4, 4))), [1, need[0]], [1, need[1]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"must_have": [(1, 128), (2, 128)]}, "3 decode graphs must be there, 2 are allowed"),
        ({"must_have": [(3, 128)]}, "3 x 128 is not on the grid"),
        ({"contexts": [128, 128]}, "contexts of decode graphs must be positive and ascending"),
        ({"num_seqs": []}, "num_seqs of decode graphs must be positive and ascending"),
        ({"num_seqs": [1, 2]}, "needs num_seqs 4 and context 512; the limit is 2 and 1024"),
        ({"contexts": [128, 256]}, "needs num_seqs 4 and context 512; the limit is 8 and 256"),
        ({"fees": np.full((4, 4), np.nan)}, "fees of decode graphs must be finite"),
        ({"fees": np.full((4, 4), -1.0)}, "fees of decode graphs must be finite"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, object], message: str) -> None:
    all_options = {"num_seqs": NUM_SEQS, "contexts": CONTEXTS, **options}

    with pytest.raises(ValueError, match=message):
        best_ragged(
            DecodeDemand.of([4], [512]), TableCosts(np.ones((4, 4))), **all_options, max_num=2
        )
