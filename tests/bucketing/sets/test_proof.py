"""The proof finds the best of all sets, and its bound says so."""

from __future__ import annotations

import subprocess
import sys

import pytest
from decode_problems import Problem, problems, random_problem
from hypothesis import given, settings

from noria.bucketing.sets.decode import DecodeSet, best_ragged

pytest.importorskip("scipy")

from noria.bucketing.sets.proof import prove
from noria.bucketing.sets.substitution import substitute


def check_against_enumeration(problem: Problem, start: DecodeSet) -> None:
    found = prove(start, problem.demand, problem.costs, **problem.options)

    best = problem.best(len(start.buckets))
    assert found.total == pytest.approx(best, rel=1e-6)
    assert found.bound == pytest.approx(best, rel=1e-6)
    assert found.cost == pytest.approx(problem.cost(found.buckets))
    assert len(found.buckets) == len(start.buckets)
    assert problem.required <= set(found.buckets)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_no_set_is_better(problem: Problem) -> None:
    for start in best_ragged(problem.demand, problem.costs, **problem.options, max_num=4):
        check_against_enumeration(problem, start)


@pytest.mark.parametrize("with_fees", [False, True], ids=["plain", "fees"])
@pytest.mark.parametrize("num", [1, 2, 3, 5, 9, 16])
def test_the_worst_start_leads_to_the_best_set(num: int, with_fees: bool) -> None:
    problem = random_problem(5, with_fees=with_fees)
    check_against_enumeration(problem, problem.worst_set(num))


@pytest.mark.parametrize(("seed", "num"), [(2, 3), (5, 5), (15, 3), (15, 4)])
def test_the_best_set_is_proven_where_its_bound_is_not_tight(seed: int, num: int) -> None:
    problem = random_problem(seed)
    best = problem.best_set(num)
    unproven = substitute(
        best, problem.demand, problem.costs, **problem.options, deadline_s=float("inf")
    )
    assert unproven.gap is not None
    assert unproven.gap > 0.005

    check_against_enumeration(problem, best)


def test_a_proof_without_time_is_a_bound() -> None:
    problem = random_problem(6)
    start = problem.worst_set(4)

    found = prove(start, problem.demand, problem.costs, **problem.options, max_s=0.0)

    best = problem.best(4)
    assert found.bound is not None
    assert found.bound <= best <= found.total <= start.total


def test_a_missing_solver_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(0)
    start = best_ragged(problem.demand, problem.costs, **problem.axes, max_num=2)[-1]
    monkeypatch.setitem(sys.modules, "scipy", None)

    with pytest.raises(ImportError, match=r"scipy: install noria\[prove\]") as raised:
        prove(start, problem.demand, problem.costs, **problem.axes)
    assert raised.value.name == "scipy"


def test_planning_without_a_proof_does_not_load_the_solver() -> None:
    program = "import noria.bucketing.sets.proof, sys; sys.exit('scipy' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
