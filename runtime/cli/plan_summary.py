"""What ``noria plan`` says of a plan that it made, in a few lines or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from ...bucketing.planner.baselines import system_of
from ...bucketing.planner.outcome import Outcome, baseline_outcome
from ...bucketing.planner.planner import Planned
from ...bucketing.traces.oddities import requests_text
from ..plan_making import SMALL_GAIN, MadePlan
from .amounts import duration_text
from .tables import format_table, percent, seconds_text, size_text, waste_text

HEADER = ("", "graphs", "prefill waste", "decode waste", "seconds", "compile")
READY_SHARE = 0.02
"""Steps may take so much longer while graphs are missing and still count as ready."""


def summary_text(made: MadePlan, output: Path | None) -> str:
    """Return what to know of a plan before it is used."""
    lines = [_title(made, output), *_traffic_lines(made), "", _table(made), ""]
    lines += [_graph_line(made), _bill_line(made), _proof_line(made), *_prefix_lines(made)]
    lines += [_ready_line(made), _gain_line(made)]
    return "\n".join(lines)


def summary_json(made: MadePlan) -> str:
    """Return the same, and all of the plan but the steps that it was made for."""
    data = made.file.to_mapping()
    about = {k: v for k, v in made.file.about.items() if k != "demand"}
    rival = made.rival
    summary = {
        "gain": made.gain,
        "rival": None if rival is None else rival.name,
        "ready_after": _ready_after(made),
    }
    return json.dumps({**data, "about": about, "summary": summary}, indent=2)


def _title(made: MadePlan, output: Path | None) -> str:
    bill = made.planned.bill
    name = "not written: give -o FILE" if output is None else str(output)
    return (
        f"{name}: {bill.num_graphs} graphs, {len(bill.prefill.buckets)} prefill and "
        f"{len(bill.decode.buckets)} decode"
    )


def _traffic_lines(made: MadePlan) -> Iterator[str]:
    about, trace = made.file.about["trace"], made.task.problem.trace
    assert isinstance(about, dict)
    steps = made.planned.expected.steps
    span = f" in {duration_text(steps.seconds)}" if trace and trace.arrivals_s is not None else ""
    counted = f", {requests_text(trace.num_requests)}{span}" if trace else ""
    yield f"traffic: {about['name']}{counted}"
    for text in (*(trace.warnings if trace else ()), *made.task.notes):
        yield f"note: {text}"
    if steps.num_preemptions:
        yield f"note: {steps.num_preemptions:,} times a request lost its blocks and started again"


def _table(made: MadePlan) -> str:
    budget = made.task.problem.budget
    rows = [_row(made, "this plan", made.outcome)]
    for one in made.baselines:
        rows.append(_row(made, one.name, baseline_outcome(one, budget.workers)))
    return format_table(HEADER, rows) + (
        "\nall for the same steps; waste is padded tokens beside real ones, in brackets in seconds;"
        f" compiled with {budget.workers} worker{'s' * (budget.workers > 1)}"
    )


def _row(made: MadePlan, name: str, found: Outcome) -> tuple[str, ...]:
    has_decode = bool(made.planned.demand.decode_shapes)
    decode = waste_text(found.decode_waste, found.decode_time_waste)
    return (
        name,
        str(found.num_graphs),
        waste_text(found.prefill_waste, found.prefill_time_waste),
        decode if has_decode else "not known",
        seconds_text(found.seconds),
        duration_text(found.wall_s),
    )


def _graph_line(made: MadePlan) -> str:
    plan = made.planned.plan
    sizes = ", ".join(str(graph.bucket.size) for graph in plan.prefill)
    verb = "covered by chunks" if plan.policy == "cover" else "padded to graphs"
    return f"prompts are {verb} of {sizes} tokens"


def _bill_line(made: MadePlan) -> str:
    bill, budget = made.planned.bill, made.task.problem.budget
    return (
        f"bill: {duration_text(bill.compile_s / budget.workers)} of compiling, "
        f"{size_text(round(bill.num_bytes))}, weighed against {duration_text(budget.horizon_s)} "
        "of such traffic"
    )


def _proof_line(made: MadePlan) -> str:
    planned = made.planned
    ended = "; the clock ended the search: --search with more time" * planned.is_cut_short
    return f"proof: prefill {_prefill_proof(planned)}; decode {_decode_proof(planned)}{ended}"


def _prefill_proof(planned: Planned) -> str:
    rule = planned.bill.prefill.rule
    if rule is not None:
        return f"as spaced by {system_of(rule)}, nothing found beats it"
    if planned.prefill_proof == "exact":
        return f"the best of its number among {planned.weighed.prefill:,} sizes"
    return "searched, without a bound"


def _decode_proof(planned: Planned) -> str:
    rule, gap = planned.bill.decode.rule, planned.decode_gap
    among = f"the best of its number among {planned.weighed.decode:,} graphs"
    if rule is not None:
        return f"as spaced by {system_of(rule)}, nothing found beats it"
    if not planned.demand.decode_shapes:
        return "powers of two, as nothing is known of its steps"
    if gap is None:
        return "searched, without a bound"
    return f"proved to be {among}" if gap < 5e-5 else f"within {percent(gap)} of {among}"


def _prefix_lines(made: MadePlan) -> Iterator[str]:
    wastes = made.prefix_wastes
    texts = {name: percent(waste) for name, waste in wastes.items()}
    if len(set(texts.values())) > 1:
        listed = ", ".join(f"{text} {name}" for name, text in texts.items())
        prefix = made.task.problem.settings.prefix
        yield f"prefill time waste by what kernels read of the prefix: {listed} (here: {prefix})"


def _ready_line(made: MadePlan) -> str:
    num, compile_s = _ready_after(made)
    wall = duration_text(compile_s / made.task.problem.budget.workers)
    return (
        f"ready: after the first {num} graphs of the order ({wall} of compiling) steps take at "
        f"most {percent(READY_SHARE)} longer than with all"
    )


def _ready_after(made: MadePlan) -> tuple[int, float]:
    """Return after how many graphs, and seconds of one worker, steps take hardly longer."""
    order = made.planned.order
    enough = order[-1].seconds * (1 + READY_SHARE)
    num = next(num for num, point in enumerate(order, 1) if point.seconds <= enough)
    return num, order[num - 1].compile_s


def _gain_line(made: MadePlan) -> str:
    gain, rival = made.gain, made.rival
    if gain is None or rival is None:
        return "gain: no default can serve these limits"
    beside = f"{rival.name}, {rival.num_graphs} graphs"
    if gain < SMALL_GAIN:
        saved = f"{percent(gain)} of the time" if gain > 0 else "no time"
        return f"gain: under 2 %: the plan saves {saved} against {beside}; that default would do"
    return f"gain: steps take {percent(gain)} less time than with {beside}"
