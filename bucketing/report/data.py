"""A report as JSON: every value of it, sorted as it is declared."""

from __future__ import annotations

import json
from dataclasses import asdict

from .sentences import verdict
from .values import Report

KEY = "noria_report"
FORMAT = 1


def json_report(report: Report) -> str:
    """Return the JSON text of a report, in one line per value; None is null."""
    data = {KEY: FORMAT, "verdict": verdict(report), **asdict(report)}
    return json.dumps(data, indent=2, allow_nan=False) + "\n"
