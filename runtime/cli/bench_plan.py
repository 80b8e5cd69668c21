"""``noria bench plan``: what a planned engine runs, beside what its plan expects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import Config, load_config, parse_config
from ..plan_setting import BUCKET_LISTS, KEY
from ..yaml_reader import read_yaml
from .amounts import Number
from .failures import SOME_FAILED, user_file
from .output_paths import OutputPath
from .progress import show_progress
from .tables import format_table, percent

if TYPE_CHECKING:
    from ..bench.planned_report import EngineRun, PhaseWork, PlannedReport

FILE = click.Path(path_type=Path)
WORK = ("", "", "steps", "tokens", "with padding", "waste", "seconds")
RUNS = ("graphs of", "graphs", "output tokens", "seconds", "tokens/s")


@click.command("plan")
@click.argument("config", type=FILE)
@click.option("--trace", metavar="FILE", type=FILE, required=True, help="Traffic, see noria plan.")
@click.option(
    "--plan", metavar="FILE", type=FILE, help="A plan in place of the configuration's buckets."
)
@click.option(
    "--num-requests",
    type=Number(1),
    default="256",
    show_default=True,
    help="The first ones of the trace that fit.",
)
@click.option("--scale", is_flag=True, help="Scale lengths until all fit max_model_len.")
@click.option("--seed", type=int, default=0, help="Other seeds draw other prompts.")
@click.option("--alone", is_flag=True, help="Leave out the run with powers of two.")
@click.option("--json", "json_path", metavar="FILE", type=OutputPath(), help="Write it, too.")
def bench_plan(
    config: Path,
    trace: Path,
    *,
    plan: Path | None,
    num_requests: float,
    scale: bool,
    seed: int,
    alone: bool,
    json_path: Path | None,
) -> None:
    """Run requests of a trace with a plan, beside what the planner expects of these requests.

    All of them wait at the start. Then the same run with powers of two. The status is 1 where
    prefill does not run exactly the expected padding, decode padding is more than 5 points off, or
    a token differs.
    """
    from ..bench.commands import write_json
    from ..bench.planned import PlannedOptions, run_planned
    from .plan_traffic import read_or_draw

    settings = _settings(config, plan)
    traffic, _ = read_or_draw(settings, trace, None)
    options = PlannedOptions(
        num_requests=int(num_requests), scale=scale, seed=seed, compare=not alone
    )
    with show_progress("bench") as progress:
        report = run_planned(settings, traffic, options, progress)
    click.echo("\n".join(_lines(report)))
    if json_path is not None:
        with user_file(json_path):
            write_json(report, json_path)
    if not report.is_as_expected:
        click.get_current_context().exit(SOME_FAILED)


def _settings(path: Path, plan: Path | None) -> Config:
    """Read the configuration, with the plan in place of its buckets if one is given."""
    if plan is None:
        return load_config(path)
    given = read_yaml(path)
    if isinstance(given, Mapping):
        others = {key: value for key, value in given.items() if key not in BUCKET_LISTS}
        given = {**others, KEY: str(plan)}
    return parse_config(given, source=str(path))


def _lines(report: PlannedReport) -> Iterator[str]:
    yield f"{report.num_requests:,} requests, {report.num_prompt_tokens:,} prompt tokens"
    yield from (f"note: {warning}" for warning in report.warnings)
    yield ""
    yield format_table(WORK, list(_work_rows(report)))
    prefill = "exact" if report.is_prefill_exact else "not as expected"
    yield f"prefill {prefill}, decode {report.decode_points:+.2f} points"
    yield ""
    runs = [run for run in (report.planned, report.baseline) if run is not None]
    yield format_table(RUNS, [_run_row(run) for run in runs])
    if report.baseline is not None:
        share = report.planned.tokens_per_s / report.baseline.tokens_per_s - 1
        same = "the same tokens" if report.are_tokens_equal else "OTHER TOKENS"
        yield f"{same}, {share:+.1%} tokens per second"


def _work_rows(report: PlannedReport) -> Iterator[tuple[str, ...]]:
    for phase, work in report.planned.phases.items():
        yield _work_row(phase, "measured", work)
        yield _work_row("", "expected", report.expected[phase])
        if report.baseline is not None:
            yield _work_row("", report.baseline.buckets, report.baseline.phases[phase])


def _work_row(phase: str, kind: str, work: PhaseWork) -> tuple[str, ...]:
    counts = (f"{work.num_steps:,}", f"{work.real_tokens:,}", f"{work.padded_tokens:,}")
    seconds = "" if work.seconds is None else f"{work.seconds:.2f}"
    return (phase, kind, *counts, percent(work.waste), seconds)


def _run_row(run: EngineRun) -> tuple[str, ...]:
    return (
        run.buckets,
        str(run.num_graphs),
        f"{run.num_output_tokens:,}",
        f"{run.seconds:.2f}",
        f"{run.tokens_per_s:.1f}",
    )
