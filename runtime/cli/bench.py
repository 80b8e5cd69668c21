"""``noria bench WHAT``: measurements. The work is done in ``noria.runtime.bench``."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .bench_plan import bench_plan
from .failures import SOME_FAILED, UserMistake, user_file
from .output_paths import OutputPath
from .progress import show_progress

if TYPE_CHECKING:
    from ..bench.commands import OfflineOptions
    from ..bench.report import Report

Command = Callable[..., None]

DTYPES = ("bfloat16", "float32")

COMMON_OPTIONS = (
    click.argument("config", type=click.Path(path_type=Path)),
    click.option("--num-prompts", type=int, help="Prompts of one run."),
    click.option("--prompt-len", type=int, help="Random token ids of one prompt."),
    click.option("--new-tokens", type=int, help="New tokens of each prompt."),
    click.option("--seed", type=int, help="Other seeds draw other prompts."),
    click.option("--num-rounds", type=int, help="Measured runs; the median counts."),
    click.option("--num-threads", type=int, help="Threads of every engine."),
    click.option(
        "--dtype",
        "dtypes",
        multiple=True,
        type=click.Choice(DTYPES),
        help="Compute in this number format; may be repeated.",
    ),
    click.option(
        "--json",
        "json_path",
        metavar="FILE",
        type=OutputPath(),
        help="Write everything that was measured, too.",
    ),
)


def common_options(command: Command) -> Command:
    """Give a command the options that all measurements have."""
    return reduce(lambda decorated, option: option(decorated), reversed(COMMON_OPTIONS), command)


@click.group()
def bench() -> None:
    """Measure Noria, and other engines beside it."""


bench.add_command(bench_plan)


@bench.command()
@common_options
def offline(config: Path, json_path: Path | None, **workload: Any) -> None:
    """Measure tokens per second of one batch of prompts.

    All prompts are there at once; ids are random and generation never stops early.
    """
    from ..bench.commands import bench_offline

    with show_progress("bench") as progress:
        report = bench_offline(config, _options(workload), progress=progress)
    _show(report, json_path)


@bench.command()
@common_options
@click.option("--engine", "engines", multiple=True, help="Measure this one; may be repeated.")
@click.option(
    "--python",
    "pythons",
    multiple=True,
    metavar="ENGINE=PATH",
    help="Interpreter that has the engine, if it is not this one.",
)
@click.option(
    "--model",
    "models",
    multiple=True,
    metavar="ENGINE=PATH",
    help="Model folder for the engine, if it cannot read Noria's.",
)
def peers(config: Path, json_path: Path | None, **options: Any) -> None:
    """Measure Noria and other engines in turn, on the same prompts.

    Engines that cannot run here are listed with the reason. Without --engine, all that are known
    are tried.
    """
    from ..bench.commands import bench_peers
    from ..bench.peers import ENGINE_NAMES, PeerOptions, parse_assignments

    others = PeerOptions(
        engines=options.pop("engines") or ENGINE_NAMES,
        pythons=parse_assignments("--python", options.pop("pythons")),
        models=parse_assignments("--model", options.pop("models")),
    )
    with show_progress("bench") as progress:
        report = bench_peers(config, _options(options), peers=others, progress=progress)
    _show(report, json_path)


@bench.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--num-threads", type=int, help="Threads of the engine.")
def step(config: Path, num_threads: int | None) -> None:
    """Show where the time of a step goes, bucket by bucket.

    Every part is measured by itself; the last line of a table is the whole step of an engine, and
    the share of it that the parts make up.
    """
    from ..bench.step import bench_step
    from ..bench.tables import print_steps

    machine, profiles = bench_step(config, num_threads=num_threads)
    print_steps(machine, profiles)


@bench.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--num-rounds", type=click.IntRange(1), default=3, help="Starts of each kind.")
@click.option("--num-threads", type=click.IntRange(1), help="Threads of every engine.")
@click.option(
    "--json",
    "json_path",
    metavar="FILE",
    type=OutputPath(),
    help="Write everything that was measured, too.",
)
def start(
    config: Path, *, num_rounds: int, num_threads: int | None, json_path: Path | None
) -> None:
    """Measure how long an engine takes to start, with and without a compiled set.

    Each start is a process of its own; cold ones, in which every graph is compiled, and warm
    ones, which load a set from a temporary folder, take turns.
    """
    from ..bench.commands import write_json
    from ..bench.start import bench_start
    from ..bench.tables import print_start

    with show_progress("bench") as progress:
        report = bench_start(
            config, num_rounds=num_rounds, num_threads=num_threads, progress=progress
        )
    print_start(report)
    if json_path is not None:
        with user_file(json_path):
            write_json(report, json_path)


@bench.command()
@click.argument("config", type=click.Path(path_type=Path), required=False)
@click.option("--tokenizer", help="Folder or hub id of a tokenizer, instead of CONFIG.")
@click.option("--num-streams", type=click.IntRange(1), default=256, help="Requests of one step.")
@click.option("--num-steps", type=click.IntRange(1), default=200, help="Measured steps.")
def detokenize(
    config: Path | None, tokenizer: str | None, *, num_streams: int, num_steps: int
) -> None:
    """Measure how long the texts of a step's tokens take.

    Every stream decodes one token in each step, at a place of its own in the same text.
    """
    from ..bench.detokenize import bench_detokenize, tokenizer_of
    from ..bench.tables import print_detokenizing

    if (config is None) == (tokenizer is None):
        raise click.UsageError("give either CONFIG or --tokenizer")
    found = tokenizer_of(config, tokenizer)
    rows = bench_detokenize(found, num_streams=num_streams, num_steps=num_steps)
    print_detokenizing(rows, num_streams=num_streams)


@bench.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "--output",
    "-o",
    metavar="FILE",
    required=True,
    type=OutputPath(),
    help="Where the costs go, as JSON.",
)
@click.option(
    "--sizes",
    default="auto",
    show_default=True,
    help="Rows of prefill graphs besides the configuration's: auto, plan for none, or 64,256.",
)
@click.option(
    "--num-seqs",
    default="auto",
    show_default=True,
    help="Requests of decode graphs besides them: auto, plan for none, or 2,6.",
)
@click.option(
    "--num-rounds",
    type=click.IntRange(1),
    default=7,
    show_default=True,
    help="Measured steps of each shape; the median counts.",
)
@click.option("--num-threads", type=click.IntRange(1), help="Threads of the engine.")
def shapes(config: Path, output: Path, **options: Any) -> None:
    """Measure what steps of each shape take, for a planner.

    Shapes take turns, in another order every round. Prefill steps run with and without a cached
    prefix, decode steps with short and long contexts, each graph full.
    """
    from ..bench.shapes import ShapesOptions, bench_shapes
    from ..step_costs import write_costs
    from .shape_tables import cost_table_text

    if not output.parent.is_dir():  # said before minutes are spent
        raise UserMistake(f"{output}: there is no folder {output.parent}")
    with show_progress("bench") as progress:
        table = bench_shapes(config, ShapesOptions(**options), progress=progress)
    with user_file(output):
        write_costs(table, output)
    click.echo(cost_table_text(table))


@bench.command()
@click.option(
    "--traces",
    metavar="DIR",
    required=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder of recorded traffic, see noria plan.",
)
@click.option("--search", default=4.0, show_default=True, help="Seconds per decode set.")
@click.option("--json", "json_path", metavar="FILE", type=OutputPath(), help="Write it, too.")
def planner(traces: Path, search: float, json_path: Path | None) -> None:
    """Measure what the planner's sets waste on recorded traffic.

    Costs are those of one model on one device (Llama-3-8B in bf16, trn2 sheet), whatever there is
    here: figures of all machines agree, seconds of planning aside.
    """
    from ..bench.planner import bench_planner
    from ..bench.planner_waste import planner_json, print_planner

    found = bench_planner(traces, search_s=search)
    print_planner(found)
    if json_path is not None:
        with user_file(json_path):
            json_path.write_text(json.dumps(planner_json(found), indent=1) + "\n")


def _options(given: dict[str, Any]) -> OfflineOptions:
    """Keep the defaults of options that were not given."""
    from ..bench.commands import OfflineOptions

    return OfflineOptions(**{key: value for key, value in given.items() if value not in (None, ())})


def _show(report: Report, json_path: Path | None) -> None:
    """Print a report; the status says whether Noria itself was measured."""
    from ..bench.commands import write_json
    from ..bench.peers import NORIA
    from ..bench.tables import print_report

    print_report(report)
    if json_path is not None:
        with user_file(json_path):
            write_json(report, json_path)
    if any(row.engine == NORIA and row.problem is not None for row in report.rows):
        click.get_current_context().exit(SOME_FAILED)
