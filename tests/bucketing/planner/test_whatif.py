"""Questions to a plan, with answers added up by hand."""

from __future__ import annotations

from typing import Any

import pytest
from small_plan import SETTINGS, STEPS, small_plan

from noria.bucketing import PlanFileError
from noria.bucketing.costs.cost import StepCosts
from noria.bucketing.planner.budget import BudgetError
from noria.bucketing.planner.outcome import outcome, prefill_time_wastes
from noria.bucketing.planner.saved_problem import saved_problem
from noria.bucketing.planner.simulation import Steps
from noria.bucketing.planner.whatif import planned_anew, planned_for_length, with_graph, without
from noria.bucketing.sets.demand import Floats

PLAN = small_plan()
PROBLEM = saved_problem(PLAN)
VALID = {"policy": "fill", "prefix": "exact", "decode_shape": "ragged"}


def test_a_plan_knows_what_it_was_made_for() -> None:
    assert (PROBLEM.settings, PROBLEM.budget.workers) == (SETTINGS, 2)
    assert PROBLEM.steps is not None
    assert PROBLEM.steps.prefill_shapes == STEPS.prefill_shapes
    assert PROBLEM.steps.decode_shapes == STEPS.decode_shapes
    assert PROBLEM.costs.source == "measured"


def test_the_plan_itself() -> None:
    found = outcome(PROBLEM, PLAN)

    assert (found.num_graphs, found.seconds, found.wall_s, found.num_bytes) == (4, 209.0, 2.0, 4e6)
    assert found.prefill_waste == found.prefill_time_waste == pytest.approx(176 / 110 - 1)
    assert found.decode_waste == found.decode_time_waste == pytest.approx(33 / 26 - 1)


@pytest.mark.parametrize(
    ("label", "seconds"), [("prefill_t16_c64", 5 * 64 + 33), ("decode_s1_c64", 176 + 12 * 4)]
)
def test_a_graph_less(label: str, seconds: float) -> None:
    found = without(PROBLEM, PLAN, label)

    assert (found.num_graphs, found.seconds, found.wall_s) == (3, seconds, 1.5)


@pytest.mark.parametrize(
    ("text", "seconds"), [("48", 3 * 16 + 2 * 48 + 33), ("3x32", 176 + 26), ("3x16", 209)]
)
def test_a_graph_more(text: str, seconds: float) -> None:
    found = with_graph(PROBLEM, PLAN, text)

    assert (found.num_graphs, found.seconds, found.wall_s) == (5, seconds, 2.5)


def test_other_budgets() -> None:
    two, three = planned_anew(PROBLEM, max_num_graphs=2), planned_anew(PROBLEM, max_num_graphs=3)

    assert (two.num_graphs, two.seconds) == (2, 5 * 64 + 12 * 4)
    assert (three.num_graphs, three.seconds) == (3, 5 * 48 + 12 * 4 - 3 * 32 + 2 * 16)
    assert planned_anew(PROBLEM, compile_s=1.0).num_graphs == 2
    with pytest.raises(BudgetError, match=r"no plan keeps within 0\.5 s"):
        planned_anew(PROBLEM, compile_s=0.5)


def test_a_shorter_context_cuts_steps_and_graphs() -> None:
    found = planned_for_length(PROBLEM, 32)

    # 40 rows run as 32 and 8; contexts end at 32.
    assert found.seconds == 3 * 16 + 2 * 32 + 2 * 16 + 26


def test_a_longer_context_changes_no_step() -> None:
    assert planned_for_length(PROBLEM, 128).seconds == 3 * 16 + 2 * 48 + 26


@pytest.mark.parametrize(
    ("ask", "text", "message"),
    [
        (without, "prefill_t64_c64", "cannot be dropped: prefill.graphs: the largest must have 64"),
        (without, "decode_s4_c64", "cannot be dropped: decode.graphs: the largest must have 4"),
        (without, "prefill", "prefill: is no graph of the plan, which has prefill_t16_c64, "),
        (with_graph, "16", "16: the plan has prefill_t16_c64 already"),
        (with_graph, "80", "80: cannot be added: prefill.graphs: the largest must have 64"),
        (with_graph, "0", "0: num_tokens must be a positive integer"),
        (with_graph, "8x64", "8x64: cannot be added: decode.graphs: the largest must have 4"),
        (with_graph, "4x65", "4x65: cannot be added"),
        (with_graph, "4x0", "4x0: context_len must be a positive integer"),
        (with_graph, "x", "'x': is no graph; write tokens of a prefill graph, 640"),
        (with_graph, "-16", "'-16': is no graph"),
        (with_graph, "4x64x2", "'4x64x2': is no graph"),
        (with_graph, "9" * 40, "is no graph"),
        (with_graph, "\u0664", "is no graph"),
    ],
)
def test_what_is_no_change_is_refused(ask: Any, text: str, message: str) -> None:
    with pytest.raises(PlanFileError) as caught:
        ask(PROBLEM, PLAN, text)

    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("about", "message"),
    [
        ({"costs": None}, "about.costs: is missing; the plan was not made by noria plan"),
        ({"costs": {"kind": "x"}}, "about: costs.kind: is 'x'"),
        ({"budget": {"workers": 0}}, "about.budget.workers: is 0; must be an integer above 0"),
        ({"budget": {"sum": 1}}, "about: "),
        ({"budget": 3}, "about.budget: is missing"),
        ({"settings": {"policy": "all"}}, "about.settings.policy: is 'all'; must be one of auto"),
        *(
            ({"settings": {**VALID, key: value}}, f"about.settings.{key}: is {value!r}; must be ")
            for key in ("granularity", "max_num_graphs", "search_s", "prove_s", "unseen_share")
            for value in ("x", -1, None, True, float("nan"))
        ),
        *(
            ({"settings": {**VALID, "max_ratio": value}}, "about.settings.max_ratio: is ")
            for value in ("x", -1, [2])
        ),
        ({"demand": None}, "about.demand: is missing"),
        ({"demand": {}}, "about.demand: is damaged"),
        ({"demand": {"prefill": "1 2 3 4", "decode": ""}}, "about.demand: is damaged"),
        ({"demand": {"prefill": "0 2 3 4 1", "decode": ""}}, "about.demand: is damaged: '0 2 3"),
        ({"demand": {"prefill": "1 1 1 0 nan", "decode": ""}}, "about.demand: is damaged"),
        ({"demand": {"prefill": [[1, 1, 1, 0, 2]], "decode": ""}}, "about.demand: is damaged"),
    ],
)
def test_a_plan_that_does_not_say_what_it_was_made_for_is_refused(
    about: dict[str, Any], message: str
) -> None:
    with pytest.raises(PlanFileError) as caught:
        saved_problem(small_plan(**about))

    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


class _PrefixCosts(StepCosts):
    """A step takes its rows, and a tenth of a row for each cached token that is read."""

    source = "rule"
    error_share = None

    def prefill_s(self, num_tokens: Any, prefix_lens: Any = 0) -> Floats:
        return num_tokens + prefix_lens / 10

    def decode_s(self, num_seqs: Any, context_lens: Any) -> Floats:
        return num_seqs + 0.0 * context_lens


def test_prefixes_are_paid_for_in_three_ways() -> None:
    steps = Steps({(10, 10, 30, 20): 1, (16, 16, 16, 0): 1}, {}, 0.0, 0.0, 0)

    wastes = prefill_time_wastes(PLAN, steps, _PrefixCosts())

    floor = 10 + 2 + 16
    assert wastes["exact"] == pytest.approx((16 + 2 + 16) / floor - 1)
    # The graph of 16 rows has room for 48 cached tokens.
    assert wastes["bucketed"] == pytest.approx((16 + 4.8 + 16) / floor - 1)
    assert wastes["max"] == pytest.approx((16 + 4.8 + 16 + 4.8) / floor - 1)
