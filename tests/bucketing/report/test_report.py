"""The values of a report: they are those of the planner, and add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from given_costs import LaunchAndWork

from noria.bucketing.planner.baselines import Baseline, baselines
from noria.bucketing.planner.evaluation import Shapes
from noria.bucketing.planner.planner import Planned, make_plan
from noria.bucketing.planner.problem import Problem, demand_of, expectation
from noria.bucketing.report.dispatched import decode_step_s, prefill_step_s
from noria.bucketing.report.page import html_report
from noria.bucketing.report.report import report_of, same_steps
from noria.bucketing.report.sensitivity import Varied, traffic_cases
from noria.bucketing.report.text import text_report
from noria.bucketing.report.values import Report
from noria.bucketing.traces.trace import Trace


def test_steps_take_what_the_planner_expects(problem: Problem, planned: Planned) -> None:
    expected, buckets = planned.expected, planned.plan.bucket_plan()
    prefill, decode = Shapes.of_prefill(expected.steps), Shapes.of_decode(expected.steps)

    prefill_s = prefill.weights @ prefill_step_s(buckets, prefill, problem.costs)
    decode_s = decode.weights @ decode_step_s(buckets, decode, problem.costs)

    assert prefill_s == pytest.approx(expected.prefill.seconds)
    assert decode_s == pytest.approx(expected.decode.seconds)


def test_graphs_share_all_steps_and_seconds(report: Report) -> None:
    for phase in report.phases:
        graphs = [graph for graph in report.graphs if graph.phase == phase.phase]
        assert sum(graph.step_share for graph in graphs) == pytest.approx(1)
        assert sum(graph.seconds for graph in graphs) == pytest.approx(phase.seconds)
        assert [graph.saved_s is None for graph in graphs] == [False] * (len(graphs) - 1) + [True]


def test_a_graph_without_which_things_take_longer_says_so(report: Report) -> None:
    for graph in report.graphs:
        if graph.saved_s:
            assert graph.longer_share == pytest.approx(graph.saved_s / report.seconds)
            # Two workers, so half a second of compiling, in a window of all that traffic.
            wanted = 0.5 * max(report.traffic.window_s, report.traffic.busy_s) / graph.saved_s
            assert graph.pays_after_s == pytest.approx(wanted)


def test_bands_of_decode_add_up_to_the_phase(report: Report) -> None:
    decode = report.plan.decode
    for bands in (report.request_bands, report.context_bands):
        assert sum(band.num for band in bands) == decode.num_steps
        assert sum(band.plan_s for band in bands) == pytest.approx(decode.seconds)
        assert sum(band.own_s for band in bands) == pytest.approx(decode.floor_s)


def test_bands_of_prompts_hold_every_request(problem: Problem, report: Report) -> None:
    assert sum(band.num for band in report.prompt_bands) == len(problem.trace.prompt_lens)


def test_the_exact_prefix_is_what_was_planned_and_others_take_no_less(report: Report) -> None:
    seconds = {one.prefix: one.seconds for one in report.prefixes}

    assert seconds["exact"] == pytest.approx(report.phases[0].seconds)
    assert seconds["exact"] <= seconds["bucketed"] <= seconds["max"]


def test_savings_are_shares_of_the_others_time(report: Report) -> None:
    assert report.default is not None
    for rule in report.rules[1:]:
        assert rule.saved_share == pytest.approx(1 - report.plan.seconds / rule.seconds)


def test_the_curve_ends_in_the_most_graphs_and_always_falls(report: Report) -> None:
    seconds = [point.seconds for point in report.curve]
    walls = [point.wall_s for point in report.curve]

    assert seconds == sorted(seconds, reverse=True)
    assert walls == sorted(walls)


def test_warm_up_starts_with_both_limit_graphs_and_ends_with_all(report: Report) -> None:
    assert len(report.warm_up) == report.bill.num_graphs - 1
    assert report.warm_up[0].wall_s == 1.0  # two graphs of 1 s each, two workers
    assert report.warm_up[-1].wall_s == report.bill.wall_s


@pytest.mark.parametrize("term", ["fixed", "rows", "context"])
def test_terms_of_costs_add_up_to_them(term: str) -> None:
    known = LaunchAndWork()
    none = Varied(known, **{"fixed": 0.0, "rows": 0.0, "context": 0.0, term: 1.0})
    wanted = {  # ms of 3 rows behind 7 tokens, and of 3 requests with 7
        "fixed": (21, 21.02),
        "rows": (2, 2.04),
        "context": (0.01 * 3 * 7, 0.02 * 3 * 6),
    }[term]

    assert float(none.prefill_s(3, 7)) * 1e3 == pytest.approx(wanted[0])
    assert float(none.decode_s(3, 7)) * 1e3 == pytest.approx(wanted[1])


def test_costs_as_known_change_nothing() -> None:
    sizes, contexts = np.arange(1, 40), np.arange(2, 80, 2)
    known = LaunchAndWork()

    assert Varied(known).prefill_s(sizes, contexts) == pytest.approx(
        known.prefill_s(sizes, contexts)
    )
    assert Varied(known).decode_s(sizes, contexts) == pytest.approx(known.decode_s(sizes, contexts))


def test_other_costs_are_paid_by_the_steps_that_there_are(report: Report) -> None:
    cases = {case.name: case for case in report.cases if case.about == "costs"}

    assert len(cases) == 6
    for term in ("fixed part of a step", "cost of rows", "cost of context"):
        less, more = cases[f"{term} -20 %"], cases[f"{term} +20 %"]
        assert less.seconds < report.plan.seconds < more.seconds
        # What one term adds is linear in it.
        assert (less.seconds + more.seconds) / 2 == pytest.approx(report.plan.seconds)


def test_other_traffic_is_simulated(
    problem: Problem, planned: Planned, others: tuple[Baseline, ...], report: Report
) -> None:
    cases = {case.name: case for case in report.cases if case.about == "traffic"}
    arrivals = problem.trace.arrivals_s
    assert arrivals is not None
    dense = replace(problem, trace=replace(problem.trace, arrivals_s=arrivals / 2))

    steps = replace(dense, steps=demand_of(dense))
    found = expectation(steps, planned.plan)

    wanted = found.prefill.seconds + found.decode.seconds
    assert cases["twice the requests"].seconds == pytest.approx(wanted)
    base = expectation(steps, others[0].plan)
    assert cases["twice the requests"].default_s == pytest.approx(
        base.prefill.seconds + base.decode.seconds
    )
    assert {"first half of the trace", "second half of the trace"} < set(cases)


def test_traffic_without_arrivals_has_no_rate(problem: Problem, planned: Planned) -> None:
    offline = replace(problem, trace=replace(problem.trace, arrivals_s=None))

    names = [case.name for case in traffic_cases(offline, planned.plan, None)]

    assert names == ["as it came", "first half of the trace", "second half of the trace"]


@pytest.mark.parametrize(
    ("prompts", "outputs"),
    [([30], [5]), ([30, 40, 200], [1, 1, 1]), ([1, 1], [3, 4])],
    ids=["one request", "no decode", "no prefill"],
)
def test_traffic_that_lacks_something_has_a_report(
    problem: Problem, prompts: list[int], outputs: list[int]
) -> None:
    little = replace(problem, trace=Trace(np.array(prompts), np.array(outputs)))

    report = report_of(little, make_plan(little), trace_name="little")

    assert report.traffic.num_requests == len(prompts)
    assert "COVERAGE" in text_report(report)
    assert html_report(report)


@pytest.mark.parametrize("has_lengths", [True, False])
def test_steps_without_requests_have_a_report(
    problem: Problem, planned: Planned, has_lengths: bool
) -> None:
    steps = replace(planned.demand, decode_shapes={}) if has_lengths else planned.demand
    lengths = Trace(np.array([30, 200]), weights=np.array([3.0, 1.0])) if has_lengths else None
    counted = replace(problem, trace=lengths, steps=steps)
    made = make_plan(counted)

    report = report_of(counted, made, baselines(same_steps(counted, made)), trace_name="counted")
    text = text_report(report)

    assert ("Decode graphs; area" in html_report(report)) != has_lengths
    assert all(case.about == "costs" for case in report.cases)
    assert [band.num for band in report.prompt_bands] == ([3.0, 1.0] if has_lengths else [])
    assert sum(band.num for band in report.row_bands) == report.phases[0].num_steps
    assert ("Prompts are not known" in text) != has_lengths
    assert ("Decode: nothing is known of its steps." in text) == has_lengths
    assert ("Decode: powers of two" in text) == has_lengths


def test_rules_are_compared_for_the_same_steps(report: Report) -> None:
    floors = {round(rule.decode.floor_s, 6) for rule in report.rules}
    tokens = {rule.decode.num_steps for rule in report.rules}

    assert len(floors) == len(tokens) == 1
