"""Plan files: YAML that people read and engines run; the same plan is the same bytes."""

from __future__ import annotations

from pathlib import Path

import yaml

from ..bucketing.plan_file import PlanFile
from ..bucketing.planner.problem import Problem
from ..bucketing.planner.saved_problem import saved_problem
from .errors import NoriaError
from .yaml_reader import read_yaml

LINE_WIDTH = 100
HEADING = "# Made by noria plan. Name this file in the configuration: buckets: plan.yaml\n"


class PlanError(NoriaError):
    """A plan cannot be read, written or made; one line."""


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""

    def ignore_aliases(self, data: object) -> bool:
        """Write what is there twice out twice."""
        return True


def _write_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style="|" if "\n" in text else None
    )


_Dumper.add_representer(str, _write_text)


def plan_text(plan: PlanFile) -> str:
    """Return the text of a plan file."""
    data = yaml.dump(
        plan.to_mapping(),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,  # lists of numbers on one line
        width=LINE_WIDTH,
        allow_unicode=True,
    )
    return HEADING + data


def write_plan(plan: PlanFile, path: Path) -> None:
    """Write a plan file. Raises OSError."""
    path.write_text(plan_text(plan), encoding="utf-8", newline="\n")


def read_plan(path: Path) -> PlanFile:
    """Read a plan file.

    Raises:
        NoriaError: one line with the file, what is wrong in it and what would fit.
    """
    data = read_yaml(path)
    try:
        return PlanFile.from_mapping(data)
    except (ValueError, OverflowError) as error:  # also numbers that are no float, or have no text
        raise PlanError(f"{path}: {' '.join(str(error).split())}") from None


def saved_problem_of(plan: PlanFile, path: Path) -> Problem:
    """Return the problem that a plan was made for, as its file keeps it.

    Raises:
        NoriaError: one line with the file and what it lacks.
    """
    try:
        return saved_problem(plan)
    except ValueError as error:
        raise PlanError(f"{path}: {' '.join(str(error).split())}") from None
