"""Plan files: what is read is what was written, and one line where there is nothing to read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from plans import plan_data

from noria.bucketing import PlanFile
from noria.runtime.errors import NoriaError
from noria.runtime.plan_files import plan_text, read_plan, saved_problem_of, write_plan

STEPS = {"seconds": 1.5, "prefill": "16 9 16 0 3\n40 40 60 20 2", "decode": ""}


def make_plan(**about: object) -> PlanFile:
    return PlanFile.from_mapping(plan_data() | {"about": about})


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"steps": STEPS, "trace": {"name": "chat.csv", "warnings": ["a: b", "- c", "", " d "]}},
        {"texts": ["1e3", "yes", "null", "012", "tab\there", "two\n\nlines \n", "\u00fc", "'"]},
        {"numbers": [1e-320, 1e300, 0.1, 3, -1, 123456789.123]},
        {"deep": {"a": [{"b": [[1, 2], []]}], "c": {}, "d": None}},
    ],
)
def test_what_is_written_is_read(tmp_path: Path, about: dict[str, object]) -> None:
    plan, path = make_plan(**about), tmp_path / "plan.yaml"

    write_plan(plan, path)

    assert read_plan(path) == plan
    assert PlanFile.from_mapping(yaml.safe_load(plan_text(plan))) == plan


def test_equal_plans_are_equal_bytes() -> None:
    shared = ["x"]

    assert plan_text(make_plan(a=shared, b=shared)) == plan_text(make_plan(a=["x"], b=["x"]))
    assert plan_text(make_plan(a=1)) != plan_text(make_plan(a=2))


def test_steps_are_lines_and_graphs_are_rows() -> None:
    text = plan_text(make_plan(steps=STEPS))

    assert "  - [16, 64, 0.016]\n" in text
    assert "    prefill: |-\n      16 9 16 0 3\n      40 40 60 20 2\n" in text


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_text("a: ["), "line 1, column 5"),
        (lambda path: path.write_text("[]"), "plan: is []; it must be a mapping"),
        (lambda path: path.write_text("noria_plan: 1"), "plan: lacks decode, limits, prefill"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
        (os.mkdir, "Is a directory"),
        (lambda path: None, "No such file"),
    ],
    ids=["yaml", "list", "empty", "bytes", "folder", "missing"],
)
def test_what_is_no_plan_is_refused_in_one_line(
    tmp_path: Path, write: Callable[[Path], object], message: str
) -> None:
    path = tmp_path / "plan.yaml"
    write(path)

    with pytest.raises(NoriaError) as caught:
        read_plan(path)

    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_plan_of_somebody_else_has_no_problem() -> None:
    with pytest.raises(NoriaError, match=r"mine\.yaml: about\.costs: is missing; the plan was not"):
        saved_problem_of(make_plan(), Path("mine.yaml"))
