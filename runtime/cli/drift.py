"""``noria drift``: whether traffic has moved away from a plan, and whether that matters."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

import click

from .amounts import Duration, duration_text
from .failures import UserMistake
from .tables import format_table, percent, seconds_text, waste_text

if TYPE_CHECKING:
    from ...bucketing.planner.drift import Drift

HEADER = ("plan", "graphs", "prefill waste", "decode waste", "seconds")


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("counters", type=click.Path(path_type=Path))
@click.option(
    "--window",
    type=Duration(),
    help="Time in which this was counted.  [default: what the steps take]",
)
@click.option(
    "--horizon", type=Duration(), help="How long a new plan would serve.  [default: the plan's]"
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def drift(
    plan: Path, counters: Path, *, window: float | None, horizon: float | None, as_json: bool
) -> None:
    """Weigh the file PLAN against a plan made afresh for what an engine counted.

    COUNTERS are those of a run. What the old plan costs more is its regret; a new one is worth it
    where the regret of the horizon is more than the seconds of compiling what is new in it.
    """
    from ...bucketing.planner.drift import drift as weigh
    from ...bucketing.planner.given_steps import counted_notes, counted_steps
    from ...bucketing.traces.counted_engine import CountedEngine
    from ..plan_files import read_plan, saved_problem_of
    from ..trace_files import read_counters_file

    file = read_plan(plan)
    problem = saved_problem_of(file, plan)
    if horizon is not None:
        problem = replace(problem, budget=replace(problem.budget, horizon_s=horizon))
    counted = read_counters_file(counters)
    try:
        asked = CountedEngine.of_plan(file)
        steps = counted_steps(counted, asked)
        found = weigh(problem, file, steps, window_s=window)
    except ValueError as error:
        raise UserMistake(f"{counters}: {error}") from None
    notes = list(counted_notes(counted, asked))
    click.echo(_as_json(found, notes) if as_json else _as_text(found, plan, notes))


def _as_text(found: Drift, plan: Path, notes: Sequence[str]) -> str:
    rows = [
        (
            name,
            str(one.num_graphs),
            waste_text(one.prefill_waste, one.prefill_time_waste),
            waste_text(one.decode_waste, one.decode_time_waste),
            seconds_text(one.seconds),
        )
        for name, one in ((str(plan), found.running), ("made afresh", found.fresh))
    ]
    regret = (
        f"regret: {percent(found.regret_share)}, {found.regret_per_hour_s:.1f} seconds of each hour"
    )
    lines = [f"note: {note}" for note in notes]
    lines += [format_table(HEADER, rows), "", regret]
    if found.added or found.dropped:
        lines.append(f"add {_listed(found.added)}; drop {_listed(found.dropped)}")
    lines.append(f"compiling what is new: {duration_text(found.compile_s)}")
    return "\n".join([*lines, _verdict(found)])


def _verdict(found: Drift) -> str:
    if not found.is_worth_it:
        horizon = duration_text(found.horizon_s)
        return f"keep the plan: in {horizon} a new one saves no more than its compiling takes"
    return f"plan anew: it pays back in {duration_text(found.pays_back_s)} of such traffic"


def _listed(buckets: Sequence[object]) -> str:
    return ", ".join(getattr(bucket, "label", "") for bucket in buckets) or "nothing"


def _as_json(found: Drift, notes: Sequence[str]) -> str:
    pays_back_s = found.pays_back_s
    data = {
        "running": asdict(found.running),
        "fresh": asdict(found.fresh),
        "add": [bucket.label for bucket in found.added],
        "drop": [bucket.label for bucket in found.dropped],
        "window_s": found.window_s,
        "horizon_s": found.horizon_s,
        "compile_s": found.compile_s,
        "regret_s": found.regret_s,
        "regret_share": found.regret_share,
        "regret_per_hour_s": found.regret_per_hour_s,
        "pays_back_s": pays_back_s if isfinite(pays_back_s) else None,
        "is_worth_it": found.is_worth_it,
        "notes": list(notes),
    }
    return json.dumps(data, indent=2)
