"""Reports of plans that were made for tasks."""

from __future__ import annotations

from ..bucketing.report.report import report_of
from ..bucketing.report.values import Report
from .plan_making import MadePlan


def report_plan(made: MadePlan, *, has_traffic_cases: bool) -> Report:
    """Return the report of a plan, beside its rival first and the other rules.

    Args:
        made: the plan.
        has_traffic_cases: whether to simulate other traffic too, which takes some seconds.
    """
    rival, about = made.rival, made.file.about["trace"]
    assert isinstance(about, dict)
    return report_of(
        made.task.problem,
        made.planned,
        sorted(made.baselines, key=lambda one: one is not rival),
        trace_name=about["name"],
        notes=made.task.notes,
        has_traffic_cases=has_traffic_cases,
    )
