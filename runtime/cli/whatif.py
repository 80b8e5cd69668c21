"""``noria whatif``: what a plan would be with other limits or budgets, or a graph more or less."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .amounts import Duration, Number, duration_text
from .failures import UserMistake
from .plan_options import FAMILIES
from .tables import format_table, seconds_text, waste_text

if TYPE_CHECKING:
    from ...bucketing.planner.outcome import Outcome
    from ...bucketing.planner.problem import Problem

HEADER = ("what", "graphs", "prefill waste", "decode waste", "seconds", "change", "compile")


@click.command()
@click.argument("plan", type=click.Path(path_type=Path))
@click.option("--max-model-len", type=Number(2), help="A new plan for this limit.")
@click.option("--compile-budget", type=Duration(), help="A new plan within this time.")
@click.option("--max-graphs", type=Number(2), help="A new plan of at most so many graphs.")
@click.option("--drop", metavar="LABEL", multiple=True, help="This plan without a graph.")
@click.option("--add", metavar="GRAPH", multiple=True, help="With one more: 640, or 8x2048.")
@click.option(
    "--trace",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Ask it for other traffic than that of the plan.",
)
@click.option("--traffic", type=click.Choice(FAMILIES), help="The same, of a synthetic family.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
def whatif(plan: Path, as_json: bool, **given: Any) -> None:
    """Show what would change about a plan, each option by itself.

    Asks the steps that the file PLAN keeps and its costs, or a trace; needs neither the
    configuration nor the model. Waste is padded tokens beside real ones, in brackets in seconds.
    """
    from ...bucketing.planner.outcome import outcome
    from ..plan_files import read_plan, saved_problem_of

    file = read_plan(plan)
    problem = saved_problem_of(file, plan)
    if given["trace"] is not None or given["traffic"] is not None:
        problem = _with_traffic(problem, given["trace"], given["traffic"])
    rows = [("this plan", outcome(problem, file))]
    rows += [(name, _found(name, ask)) for name, ask in _questions(problem, file, given)]
    click.echo(_as_json(rows) if as_json else _as_text(rows))


def _questions(
    problem: Problem, file: Any, given: dict[str, Any]
) -> Iterator[tuple[str, Callable[[], Outcome]]]:
    from functools import partial

    from ...bucketing.planner.whatif import planned_anew, planned_for_length, with_graph, without

    if (length := given["max_model_len"]) is not None:
        yield f"--max-model-len {length}", partial(planned_for_length, problem, length)
    if (seconds := given["compile_budget"]) is not None:
        text = duration_text(seconds)
        yield f"--compile-budget {text}", partial(planned_anew, problem, compile_s=seconds)
    if (num := given["max_graphs"]) is not None:
        yield f"--max-graphs {num}", partial(planned_anew, problem, max_num_graphs=num)
    for label in given["drop"]:
        yield f"--drop {label}", partial(without, problem, file, label)
    for text in given["add"]:
        yield f"--add {text}", partial(with_graph, problem, file, text)


def _found(name: str, ask: Callable[[], Outcome]) -> Outcome:
    try:
        return ask()
    except ValueError as error:
        option = name.split(" ")[0]
        raise UserMistake(f"{option}: {error}") from None


def _with_traffic(problem: Problem, path: Path | None, family: str | None) -> Problem:
    """Return the problem with the steps of other traffic, which leads to them with no padding."""
    from ...bucketing.planner.given_steps import steps_of_lengths
    from ...bucketing.planner.problem import demand_of
    from ...bucketing.traces.families import draw_trace
    from ...bucketing.traces.selection import fit_to_limits
    from ...bucketing.traces.trace import TraceError
    from ..plan_problem import LENGTHS_ONLY, is_single_requests
    from ..trace_files import read_trace_file

    if path is not None and family is not None:
        raise UserMistake("--trace: is given, and --traffic is, too; give only one of them")
    trace = draw_trace(str(family)) if path is None else read_trace_file(path)
    try:
        fitting = fit_to_limits(trace, problem.limits.max_model_len)
    except TraceError as error:
        raise UserMistake(str(error)) from None
    single = is_single_requests(fitting)
    for text in (*fitting.warnings, *(() if single else (LENGTHS_ONLY,))):
        click.echo(f"note: {text}", err=True)
    if not single:
        return replace(problem, steps=steps_of_lengths(fitting, problem.limits))
    return replace(problem, steps=demand_of(replace(problem, trace=fitting, steps=None)))


def _as_text(rows: Sequence[tuple[str, Outcome]]) -> str:
    base = rows[0][1].seconds
    return format_table(HEADER, [_cells(name, found, base) for name, found in rows])


def _cells(name: str, found: Outcome, base: float) -> tuple[str, ...]:
    change = round(found.seconds / base - 1, 3) + 0.0 if base else 0.0  # no -0.0
    return (
        name,
        str(found.num_graphs),
        waste_text(found.prefill_waste, found.prefill_time_waste),
        waste_text(found.decode_waste, found.decode_time_waste),
        seconds_text(found.seconds),
        f"{change:+.1%}",
        duration_text(found.wall_s),
    )


def _as_json(rows: Sequence[tuple[str, Outcome]]) -> str:
    return json.dumps([{"what": name, **asdict(found)} for name, found in rows], indent=2)
