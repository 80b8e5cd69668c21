"""The forms of a report: the same values in text, JSON and a page that stands alone."""

from __future__ import annotations

import json
import types
import typing
from dataclasses import fields, is_dataclass, replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from noria.bucketing.planner.baselines import Baseline
from noria.bucketing.planner.planner import Planned
from noria.bucketing.planner.problem import Problem
from noria.bucketing.report.data import json_report
from noria.bucketing.report.page import html_report
from noria.bucketing.report.report import report_of
from noria.bucketing.report.sections import sections
from noria.bucketing.report.sentences import verdict
from noria.bucketing.report.tables import Table
from noria.bucketing.report.text import text_report
from noria.bucketing.report.values import Report

TITLES = (
    "Comparison",
    "What each graph is worth",
    "Who pays",
    "How many graphs",
    "Warm-up",
    "Under other conditions",
    "Cached tokens of prefill",
    "Coverage",
    "Costs",
    "Proof",
)
FORMS = (text_report, json_report, html_report)
NASTY = "<script>alert('1')</script> & \"Mon\x1bday\"\n\udcff.csv"


def read_back(kind: typing.Any, value: typing.Any) -> typing.Any:
    """Make a value of a type of plain data."""
    if is_dataclass(kind) and isinstance(kind, type):
        hints = typing.get_type_hints(kind)
        assert set(value) == set(hints), kind
        return kind(
            **{one.name: read_back(hints[one.name], value[one.name]) for one in fields(kind)}
        )
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        return tuple(map(read_back, kinds, value))
    if isinstance(kind, types.UnionType):
        some = next(one for one in typing.get_args(kind) if one is not type(None))
        return None if value is None else read_back(some, value)
    return value


def page_of(report: Report) -> ElementTree.Element:
    start, _, rest = html_report(report).partition("\n")
    assert start == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def texts(element: ElementTree.Element) -> str:
    return " ".join("".join(element.itertext()).replace("\N{NO-BREAK SPACE}", " ").split())


def test_a_report_read_from_json_reads_the_same(report: Report) -> None:
    data = json.loads(json_report(report))
    assert data.pop("noria_report") == 1
    assert data.pop("verdict") == verdict(report)

    again = read_back(Report, data)

    assert again == report
    # So every number of the other forms is one of the JSON, or made from these alone.
    for form in FORMS:
        assert form(again) == form(report)


def test_the_same_plan_has_the_same_bytes(
    report: Report, problem: Problem, planned: Planned, others: tuple[Baseline, ...]
) -> None:
    again = report_of(problem, planned, others, trace_name="monday.csv", notes=["made up"])

    assert again == report


@pytest.mark.parametrize("has_others", [True, False])
@pytest.mark.parametrize("has_traffic_cases", [True, False])
def test_every_section_is_in_both_forms(
    problem: Problem,
    planned: Planned,
    others: tuple[Baseline, ...],
    has_others: bool,
    has_traffic_cases: bool,
) -> None:
    report = report_of(
        problem,
        planned,
        others if has_others else (),
        trace_name="t",
        has_traffic_cases=has_traffic_cases,
    )
    text = text_report(report)

    assert tuple(section.title for section in sections(report)) == TITLES
    assert [line for line in text.splitlines() if line.isupper()] == [t.upper() for t in TITLES]
    assert tuple(one.text for one in page_of(report).iter("h2")) == TITLES
    assert ("Other traffic was not simulated." in text) == (not has_traffic_cases)
    assert all(len(line) <= 110 for line in text.splitlines())


def test_the_page_shows_every_sentence_and_table_cell(report: Report) -> None:
    shown = texts(page_of(report))
    paragraphs = {texts(one) for one in page_of(report).iter("p")}
    cells = {one.text for one in page_of(report).iter("td")}

    for section in sections(report):
        for block in section.blocks:
            if isinstance(block, str):
                assert block in paragraphs
            elif isinstance(block, Table):
                assert {cell for row in block.rows for cell in row} <= cells
    assert verdict(report) in shown


def test_the_page_stands_alone(report: Report) -> None:
    loads = {"script", "link", "img", "iframe", "object", "image", "use"}
    page = page_of(report)

    assert not loads & {one.tag.rpartition("}")[2] for one in page.iter()}
    for one in page.iter():
        for name, value in one.attrib.items():
            assert name not in ("href", "src")
            assert not name.startswith("on")
            assert "url(" not in value
    assert "url(" not in html_report(report)
    assert "@import" not in html_report(report)


def test_every_drawing_has_a_name_and_marks_inside_its_frame(report: Report) -> None:
    drawings = [*page_of(report).iter("{http://www.w3.org/2000/svg}svg")]

    assert len(drawings) == 9
    for one in drawings:
        assert one.get("aria-label")
        _, _, width, height = map(float, one.attrib["viewBox"].split())
        for mark in one.iter():
            for name, limit in (("x", width), ("cx", width), ("y", height), ("cy", height)):
                assert -1 <= float(mark.get(name, 0)) <= limit + 1, ElementTree.tostring(mark)
        assert "nan" not in ElementTree.tostring(one, encoding="unicode")


def test_names_from_outside_cannot_change_the_page_or_a_terminal(
    problem: Problem, planned: Planned
) -> None:
    trace = replace(problem.trace, warnings=(NASTY,), sha256=NASTY)
    report = report_of(
        replace(problem, trace=trace),
        planned,
        trace_name=NASTY,
        notes=[NASTY],
        has_traffic_cases=False,
    )
    page, text = html_report(report), text_report(report)
    shown = "<script>alert('1')</script> & \"Mon?day\" ?.csv"

    HTMLParser().feed(page)
    tags = {one.tag for one in page_of(report).iter()}
    assert "script" not in tags
    assert shown in texts(page_of(report))
    assert text.startswith(f"Plan for {shown}: ")
    for form in (page, text, json_report(report)):
        assert "\x1b" not in form
        form.encode()


def with_gain(report: Report, gain: float) -> Report:
    plan, default, *rest = report.rules
    decode = replace(default.decode, seconds=plan.seconds / (1 - gain) - default.prefill.seconds)
    changed = replace(default, decode=decode, saved_share=gain)
    return replace(report, rules=(plan, changed, *rest))


@pytest.mark.parametrize(
    ("gain", "words"),
    [
        (0.0201, "saves 2.0 % of the time of vLLM Neuron (powers of two), with"),
        (0.0199, "less than 2.0 %"),
        (0.0, "hardly worth a plan of its own"),
        (-0.25, "takes 25.0 % more than vLLM Neuron (powers of two)"),
    ],
)
def test_a_small_gain_is_said_plainly(report: Report, gain: float, words: str) -> None:
    changed = with_gain(report, gain)

    for form in FORMS:
        said = form(changed).replace("&#160;", " ")
        assert words in " ".join(said.split())
