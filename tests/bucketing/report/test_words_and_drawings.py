"""Sentences, tables and drawings of values that are easy to see through."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from noria.bucketing.report.bands import Band
from noria.bucketing.report.charts import band_chart, curve_chart, rules_chart, warm_up_chart
from noria.bucketing.report.sections import Figure, sections
from noria.bucketing.report.sentences import (
    graph_sentence,
    next_on_the_curve,
    proof_sentences,
    ready_sentence,
)
from noria.bucketing.report.svg import Axis, label, path
from noria.bucketing.report.tables import Table, band_table, curve_table
from noria.bucketing.report.text import text_report
from noria.bucketing.report.values import BillFacts, BudgetFacts, Report, WarmUpFacts


def bill(num_prefill: int, seconds: float) -> BillFacts:
    compile_s = 60.0 * (num_prefill + 4)
    return BillFacts(num_prefill, 4, compile_s, compile_s / 2, 1e6, seconds)


@pytest.fixture
def curved(report: Report) -> Report:
    """40 points from 5 graphs on, of which that of 34 is the plan's, improved since."""
    curve = tuple(bill(num, 100 + 100 / num) for num in range(1, 41))
    return replace(report, curve=curve, bill=replace(curve[29], seconds=99.0))


def test_neighbours_on_the_curve_are_compared_with_its_own_point(curved: Report) -> None:
    assert next_on_the_curve(curved) == (
        "With 33 graphs the traffic takes 115 ms more (0.1 %), and compiling 60 s less. "
        "With 35 graphs the traffic takes 108 ms less (0.1 %), and compiling 60 s more."
    )


def test_a_shortened_table_keeps_its_ends_and_the_plan(curved: Report) -> None:
    rows = curve_table(curved).rows
    shown = [
        line[2:].split()[0] for line in text_report(curved).splitlines() if line[2:3].isdigit()
    ]

    assert len(rows) == 40
    assert [num for num in ("5", "34", "44") if num not in shown] == []
    (starred,) = [line for line in text_report(curved).splitlines() if line.startswith("* 34")]
    assert starred.split()[1:4] == ["34", "30", "4"]
    assert sum(line.endswith("103") for line in text_report(curved).splitlines()) < 5


def test_ready_is_with_two_graphs_and_near_the_end_with_more(report: Report) -> None:
    points = (
        WarmUpFacts("a", 2.0, 300.0),
        WarmUpFacts("b", 3.0, 109.0),
        WarmUpFacts("c", 4.0, 100.0),
    )

    assert ready_sentence(replace(report, warm_up=points)) == (
        "An engine can serve after 2 s, with the two limit graphs, and takes 200 % longer then; "
        "after 3 s, with 3 graphs, it is within 10 % of the whole plan (4 s)."
    )
    assert ready_sentence(replace(report, warm_up=points[1:])).endswith("less than 10 %.")


def test_a_band_shows_its_share_of_the_waste_and_its_own(report: Report) -> None:
    bands = (Band(1, 1, 5.0, 2.0, 3.0, 4.0), Band(2, 4, 7.0, 10.0, 13.0, 10.0))

    assert band_table(report, bands, "size", "steps").rows == (
        ("1", "5", "3.0", "25.0 %", "50.0 %", "100 %"),
        ("2 to 4", "7", "13.0", "75.0 %", "30.0 %", "0.0 %"),
    )


def test_a_graph_is_worth_what_would_take_longer_without_it(report: Report) -> None:
    graph = replace(
        report.graphs[0], phase="prefill", size=4224, step_share=0.06, saved_s=9.0,
        longer_share=0.031, compile_s=60.0,
    )  # fmt: skip

    assert graph_sentence(graph) == (
        "Prefill 4,224 serves 6.0 % of the prefill steps; without it all takes 3.1 % longer and "
        "there are 60 s less of compiling."
    )
    assert "nothing takes longer" in graph_sentence(replace(graph, saved_s=0.0, longer_share=0.0))
    assert "no other holds" in graph_sentence(replace(graph, saved_s=None, longer_share=None))


@pytest.mark.parametrize(
    ("gap", "words"),
    [(None, "without a bound"), (0.0, "Decode: exact"), (0.0312, "within 3.1 %")],
)
def test_a_proof_says_what_is_known(report: Report, gap: float | None, words: str) -> None:
    said = [*proof_sentences(replace(report, proof=replace(report.proof, decode_gap=gap)))]

    assert words in said[1]
    assert f"{report.proof.weighed.decode} graphs" in said[1]
    assert not any("clock" in one for one in said)


def test_a_rule_that_nothing_beats_is_named(report: Report) -> None:
    found = replace(report.proof, rules=("exponential", "powers_of_two"))

    prefill, decode = [*proof_sentences(replace(report, proof=found))][:2]

    assert prefill.startswith("Prefill: as spaced by Gaudi (exponential). No set that was found")
    assert decode.startswith("Decode: as spaced by vLLM Neuron (powers of two). No set that was")


def test_a_search_that_a_clock_ended_is_said_to_have_been(report: Report) -> None:
    ended = replace(report, proof=replace(report.proof, is_cut_short=True))

    assert any("A clock ended the search" in one for one in proof_sentences(ended))


def test_all_tables_and_drawings_are_there(report: Report) -> None:
    blocks = [block for section in sections(report) for block in section.blocks]

    assert [block.head[0] for block in blocks if isinstance(block, Table)] == [
        "graphs of",
        "prefill graph",
        "decode graph",
        "prompts up to",
        "prompt tokens",
        "decode requests",
        "decode context",
        "graphs",
        "graph",
        "if",
        "prefix",
    ]
    assert sum(isinstance(block, Figure) for block in blocks) == 9


def test_an_axis_keeps_values_between_its_ends() -> None:
    axis = Axis(10, 20, 200, 100)

    assert [axis.place(value) for value in (0, 10, 15, 20, 99)] == [200, 200, 150, 100, 100]
    assert Axis(3, 40, 0, 1, is_log=True).ticks() == (4.0, 8.0, 16.0, 32.0)
    assert axis.ticks() == (10.0, 12.0, 14.0, 16.0, 18.0, 20.0)


def test_texts_of_drawings_are_escaped() -> None:
    assert label(1.0, 2.5, "<b> & 'c'") == (
        '<text x="1" y="2.5" text-anchor="start">&lt;b&gt; &amp; &#x27;c&#x27;</text>'
    )


def test_steps_are_level_until_the_next_point() -> None:
    assert path([(0.0, 5.0), (2.0, 3.0)], "a", is_steps=True) == '<path d="M0 5H2V3" class="a"/>'
    assert path([(0.0, 5.0), (2.0, 3.0)], "a") == '<path d="M0 5L2 3" class="a"/>'


def marks(drawing: str, name: str) -> list[ElementTree.Element]:
    return [*ElementTree.fromstring(drawing).iter(f"{{http://www.w3.org/2000/svg}}{name}")]


def test_the_parts_of_a_bar_follow_each_other_to_its_seconds(report: Report) -> None:
    bars = [one for one in marks(rules_chart(report), "rect") if one.get("height") == "19"]

    assert len(bars) == 4 * len(report.rules)
    widths = []
    for at in range(0, len(bars), 4):
        end = 0.0
        for one in bars[at : at + 4]:
            assert float(one.attrib["x"]) == pytest.approx(end, abs=0.02)
            end += float(one.attrib["width"])
        widths.append(end)
    top = max(rule.seconds for rule in report.rules)
    for width, rule in zip(widths, report.rules, strict=True):
        assert width / max(widths) == pytest.approx(rule.seconds / top, abs=1e-3)


def test_bars_of_bands_are_as_high_as_their_waste(report: Report) -> None:
    drawing = band_chart(report, (Band(1, 4, 1.0, 1.0, 1.25, 1.5),), "size")

    plan, default = (one for one in marks(drawing, "rect") if one.find("*") is not None)
    assert float(default.attrib["height"]) == pytest.approx(2 * float(plan.attrib["height"]))


def test_bands_without_the_default_do_not_name_it(report: Report) -> None:
    assert report.default is not None
    band = Band(1, 4, 1.0, 1.0, 1.25, 1.5)

    assert report.default.name in band_chart(report, (band,), "size")
    alone = band_chart(report, (replace(band, default_s=None),), "size")
    assert report.default.name not in alone


def test_the_curve_is_drawn_near_its_end_and_marks_plan_and_budget(curved: Report) -> None:
    budget = BudgetFacts(1200.0, 2, None, None, 86400.0)
    drawing = curve_chart(replace(curved, budget=budget))

    dots = marks(drawing, "circle")
    tips = ["".join(one.itertext()) for one in dots]
    assert sum(tip.startswith("6 graphs") for tip in tips) == 0  # takes 146 % of the last
    assert sum(tip.startswith("7 graphs") for tip in tips) == 1
    (chosen,) = [one for one in dots if one.get("class") == "chosen"]
    (same,) = [one for one, tip in zip(dots, tips, strict=True) if tip.startswith("34 graphs")]
    assert [chosen.get(at) for at in ("cx", "cy")] == [same.get(at) for at in ("cx", "cy")]
    assert re.findall(r">(chosen: 34 graphs|budget)<", drawing) == ["chosen: 34 graphs", "budget"]


def test_warm_up_falls_to_the_whole_plan(report: Report) -> None:
    dots = [one for one in marks(warm_up_chart(report), "circle") if one.get("class") == "plan"]

    assert len(dots) == len(report.warm_up)
    heights = [float(one.attrib["cy"]) for one in dots]
    assert heights == sorted(heights)
