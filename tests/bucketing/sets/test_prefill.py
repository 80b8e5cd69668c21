"""Sets for single graphs are the best there are: better than every other set of the rules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from noria.bucketing.sets.demand import PrefillDemand
from noria.bucketing.sets.prefill import (
    SizeSet,
    at_most,
    best_sizes,
    best_with_fees,
    candidate_sizes,
    fewest_sizes,
    least_ratio,
    padded_cost,
)


@dataclass(frozen=True)
class Problem:
    """A small choice; integers, so that sums are exact."""

    needs: dict[int, int]
    sizes: tuple[int, ...]
    seconds: tuple[int, ...]
    fees: tuple[int, ...]
    must_have: tuple[int, ...] = ()
    max_ratio: float | None = None

    @property
    def demand(self) -> PrefillDemand:
        return PrefillDemand.of(list(self.needs), list(self.needs.values()))

    def best(self, max_num: int = 9) -> tuple[SizeSet, ...]:
        return best_sizes(*self.arrays(), max_num=max_num, fees=self.prices(), **self.rules())

    def best_of_any_number(self) -> SizeSet:
        return best_with_fees(*self.arrays(), self.prices(), **self.rules())

    def arrays(self) -> tuple[PrefillDemand, np.ndarray, np.ndarray]:
        return self.demand, np.array(self.sizes), np.array(self.seconds, dtype=float)

    def prices(self) -> np.ndarray:
        return np.array(self.fees, dtype=float)

    def rules(self) -> dict[str, object]:
        return {"must_have": self.must_have, "max_ratio": self.max_ratio}

    def allowed(self) -> Iterator[tuple[int, ...]]:
        """Every set that follows the rules."""
        for num in range(len(self.sizes)):
            for chosen in combinations(self.sizes[:-1], num):
                sizes = (*chosen, self.sizes[-1])
                if self.keeps_ratio(sizes) and set(self.must_have) <= set(sizes):
                    yield sizes

    def keeps_ratio(self, sizes: tuple[int, ...]) -> bool:
        return all(
            b <= (self.max_ratio or inf) * a or not any(a < c < b for c in self.sizes)
            for a, b in pairwise(sizes)
        )

    def total(self, sizes: tuple[int, ...], *, next_size: bool) -> int:
        """What a set costs if steps take the next size, or else the fastest that holds them."""
        seconds = dict(zip(self.sizes, self.seconds, strict=True))
        total = sum(dict(zip(self.sizes, self.fees, strict=True))[size] for size in sizes)
        for need, num in self.needs.items():
            fitting = [seconds[size] for size in sizes if size >= need]
            total += num * (fitting[0] if next_size else min(fitting))
        return total


@st.composite
def problems(draw: st.DrawFn, kinds: str = "") -> Problem:
    """Draw a problem with the kinds named: fees, must, ratio, rising."""
    sizes = sorted(draw(st.sets(st.integers(1, 30), min_size=1, max_size=7)))
    num = len(sizes)
    needs = draw(st.dictionaries(st.integers(1, sizes[-1]), st.integers(0, 9), min_size=1))
    prices = st.lists(st.integers(0, 12), min_size=num, max_size=num)
    seconds = draw(prices)
    return Problem(
        needs,
        tuple(sizes),
        tuple(sorted(seconds) if "rising" in kinds else seconds),
        tuple(draw(prices) if "fees" in kinds else [0] * num),
        tuple(draw(st.sets(st.sampled_from(sizes), max_size=3))) if "must" in kinds else (),
        draw(st.sampled_from([1.5, 2, 2.5, 4])) if "ratio" in kinds else None,
    )


def assert_is_best_of_every_number(problem: Problem, *, next_size: bool) -> None:
    allowed = [(problem.total(one, next_size=next_size), len(one)) for one in problem.allowed()]
    steps = [(num, total) for total, num in allowed]
    best = {num: min(t for n, t in steps if n <= num) for num in {n for n, _ in steps}}
    expected = [(num, best[num]) for num in sorted(best) if best[num] < best.get(num - 1, inf)]
    found = problem.best()

    assert [(len(one.sizes), one.total) for one in found] == expected
    assert all(problem.total(one.sizes, next_size=True) == one.total for one in found)
    assert {one.sizes for one in found} <= set(problem.allowed())


@given(problems())
def test_a_number_of_sizes_is_best_even_if_steps_may_take_any_that_holds_them(
    problem: Problem,
) -> None:
    assert_is_best_of_every_number(problem, next_size=False)


@given(problems("fees"))
def test_fees_may_be_any(problem: Problem) -> None:
    assert_is_best_of_every_number(problem, next_size=False)


@given(problems("must fees"))
def test_must_haves_are_in_every_set(problem: Problem) -> None:
    assert_is_best_of_every_number(problem, next_size=True)


@given(problems("ratio"))
def test_neighbours_keep_the_ratio(problem: Problem) -> None:
    assert_is_best_of_every_number(problem, next_size=True)


@given(problems("must ratio fees"))
def test_all_rules_hold_together(problem: Problem) -> None:
    assert_is_best_of_every_number(problem, next_size=True)


@given(problems("must ratio fees rising"))
def test_with_rising_seconds_the_next_size_is_the_fastest(problem: Problem) -> None:
    assert_is_best_of_every_number(problem, next_size=False)


@given(st.sampled_from(["fees", "must fees", "ratio fees", "must ratio fees"]).flatmap(problems))
def test_with_fees_any_number_of_sizes_is_weighed(problem: Problem) -> None:
    totals = [problem.total(one, next_size=True) for one in problem.allowed()]
    found = problem.best_of_any_number()

    assert found.total == problem.total(found.sizes, next_size=True) == min(totals)
    assert found.sizes in set(problem.allowed())


@given(problems("must ratio fees rising"), st.integers(1, 8))
def test_the_number_is_kept_or_the_least_that_would_do_is_named(
    problem: Problem, max_num: int
) -> None:
    nums = [len(one) for one in problem.allowed()]
    if min(nums) <= max_num:
        assert max(len(one.sizes) for one in problem.best(max_num)) <= max_num
        return

    text = f"takes at least {min(nums)} sizes, max_num is {max_num}"
    with pytest.raises(ValueError, match=text):
        problem.best(max_num)


@given(problems("must fees rising"))
def test_without_a_ratio_each_further_size_saves_less_if_seconds_rise(problem: Problem) -> None:
    totals = [one.total for one in problem.best()]

    assert all(a - b >= b - c for a, b, c in zip(totals, totals[1:], totals[2:], strict=False))


@pytest.mark.parametrize("rising", [True, False])
@pytest.mark.parametrize("max_ratio", [None, 1.3])
def test_large_choices_equal_the_quadratic_reference(rising: bool, max_ratio: float | None) -> None:
    rng = np.random.default_rng(7)
    sizes = np.unique(rng.integers(1, 5000, 400))
    seconds = rng.integers(1, 10_000, len(sizes)).astype(float)
    seconds = np.sort(seconds) if rising else seconds
    demand = PrefillDemand.of(rng.integers(1, sizes[-1], 3000))
    expected = quadratic(demand, sizes, seconds, max_num=40, max_ratio=max_ratio)

    found = best_sizes(demand, sizes, seconds, max_num=40, max_ratio=max_ratio)

    by_num = [at_most(found, num).cost for num in range(len(found[0].sizes), 41)]
    assert by_num == [one for one in expected if one < inf]


def quadratic(
    demand: PrefillDemand,
    sizes: np.ndarray,
    seconds: np.ndarray,
    *,
    max_num: int,
    max_ratio: float | None,
) -> list[float]:
    """Return the least cost of 1 to ``max_num`` sizes, by looking at every pair of neighbours."""
    needs = np.array([demand.weights[demand.sizes <= size].sum() for size in sizes])
    pairs = (needs[None] - needs[:, None]) * seconds[None]
    pairs[~np.triu(np.ones_like(pairs, dtype=bool), 1)] = inf
    if max_ratio is not None:
        is_next = np.eye(len(sizes), k=1, dtype=bool)
        pairs[(sizes[None] > max_ratio * sizes[:, None]) & ~is_next] = inf
    alone = values = needs * seconds
    found = [values[-1]]
    for _ in range(1, max_num):
        values = np.minimum(alone, (values[:, None] + pairs).min(axis=0))
        found.append(values[-1])
    return [float(one) for one in found]


ONE = Problem({3: 2}, sizes=(4,), seconds=(5,), fees=(1,))


def test_one_candidate_is_the_set() -> None:
    assert ONE.best() == (SizeSet((4,), 10.0, 1.0),)


def test_more_sizes_that_save_nothing_are_left_out() -> None:
    flat = Problem({1: 3, 4: 2, 9: 1}, sizes=(1, 4, 9), seconds=(2, 2, 2), fees=(0, 0, 0))
    idle = replace(flat, needs={1: 0, 9: 5}, seconds=(1, 2, 3))

    assert [one.sizes for one in flat.best()] == [(9,)]
    assert [one.sizes for one in idle.best()] == [(9,)]


def test_a_size_that_no_step_needs_may_bridge_the_ratio() -> None:
    bridge = Problem({1: 9, 4: 1}, (1, 2, 4), seconds=(1, 2, 4), fees=(0, 0, 0), max_ratio=2)

    assert bridge.best()[-1].sizes == (1, 2, 4)


def test_a_larger_size_is_had_where_it_is_cheaper_to_have() -> None:
    cheaper = Problem({1: 1}, (1, 2, 9), seconds=(1, 1, 9), fees=(5, 0, 0))

    assert cheaper.best()[-1].sizes == cheaper.best_of_any_number().sizes == (2, 9)


def test_rounding_is_no_saving() -> None:
    sizes = np.arange(1, 6)
    demand = PrefillDemand.of(sizes, [1.9, 1.5, 0.8, 0.9, 0.2])
    seconds = np.array([0.1, 0.3, 0.6, 1.9, 2.4])
    fees_that_savings_equal = np.append(np.cumsum(demand.weights)[:-1] * np.diff(seconds), 0)

    sets = best_sizes(demand, sizes, seconds, max_num=5, fees=fees_that_savings_equal)

    assert [one.sizes for one in sets] == [(5,), (2, 5)]


def test_a_set_costs_what_its_steps_pay() -> None:
    demand = PrefillDemand.of([3, 5, 100], weights=[2, 3, 0.5])
    sizes = candidate_sizes(128, 4)

    sets = best_sizes(demand, sizes, sizes**1.5, max_num=3, fees=sizes / 16)

    for one in sets:
        chosen = np.array(one.sizes)
        assert one.cost == pytest.approx(padded_cost(demand, chosen, chosen**1.5))
        assert one.fees == pytest.approx(chosen.sum() / 16)


def test_the_last_set_within_a_number_is_taken() -> None:
    sets = [SizeSet((1, 9), 3.0), SizeSet((1, 4, 9), 2.0), SizeSet((1, 2, 3, 4, 9), 1.0)]

    assert [at_most(sets, num).cost for num in (2, 3, 4, 5, 99)] == [3, 2, 2, 1, 1]
    with pytest.raises(ValueError, match="at most 1 sizes, the least is 2"):
        at_most(sets, 1)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"needs": {5: 1}}, "a step of 5 rows is above the limit 4"),
        ({"sizes": (4, 4), "seconds": (1, 1), "fees": (0, 0)}, "strictly increasing"),
        ({"sizes": (0,)}, "candidates must be positive"),
        ({"sizes": (), "seconds": (), "fees": ()}, "candidates must be positive"),
        ({"seconds": (1, 2)}, "seconds must be finite, not negative, and one per candidate"),
        ({"seconds": (float("nan"),)}, "seconds must be finite"),
        ({"seconds": (-1,)}, "seconds must be finite, not negative"),
        ({"fees": (inf,)}, "fees must be finite"),
        ({"must_have": (3,)}, r"must_have sizes \[3\] are no candidates"),
        ({"max_ratio": 1.0}, r"max_ratio must be above 1, got 1\.0"),
    ],
)
def test_input_that_no_set_can_be_chosen_from_is_refused(
    change: dict[str, object], text: str
) -> None:
    wrong = replace(ONE, **change)

    with pytest.raises(ValueError, match=text):
        wrong.best()
    with pytest.raises(ValueError, match=text):
        wrong.best_of_any_number()


def test_candidates_are_multiples_must_haves_and_the_limit() -> None:
    assert candidate_sizes(1000, 256, must_have=[10, 256]).tolist() == [10, 256, 512, 768, 1000]
    assert candidate_sizes(100, 128).tolist() == [100]
    with pytest.raises(ValueError, match="granularity must be a positive integer"):
        candidate_sizes(100, 0)


@given(problems("ratio"))
def test_the_fewest_sizes_that_keep_a_ratio_are_counted(problem: Problem) -> None:
    whole = [len(one) for one in problem.allowed() if one[0] == problem.sizes[0]]
    sizes = np.array(problem.sizes)
    assert problem.max_ratio is not None

    assert fewest_sizes(sizes, problem.max_ratio) == min(whole)
    for num in range(2, len(sizes) + 1):
        ratio = least_ratio(sizes, num)
        assert fewest_sizes(sizes, ratio) <= num
        if ratio > 1.015:
            assert fewest_sizes(sizes, ratio - 0.01) > num
