"""The options of ``noria plan`` that belong to plans from traffic."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from .amounts import Duration, MemorySize, Number
from .failures import UserMistake
from .output_paths import OutputPath

FAMILIES = ("chat", "code", "summarization", "uniform")
Command = TypeVar("Command", bound=Callable[..., Any])
FILE = click.Path(path_type=Path)

OPTIONS = (
    click.option(
        "--trace",
        metavar="FILE",
        type=FILE,
        help="Traffic: a trace of any known format, counters of a run, or a file of prompts.",
    ),
    click.option(
        "--traffic", type=click.Choice(FAMILIES), help="Synthetic traffic for want of a trace."
    ),
    click.option("--scale", is_flag=True, help="Scale lengths until all fit max_model_len."),
    click.option("--head", type=Number(1), help="Plan for the first requests only."),
    click.option("--chat", is_flag=True, help="Texts of a prompt file are messages of a chat."),
    click.option("-o", "--output", metavar="FILE", type=OutputPath(), help="Where the plan goes."),
    click.option(
        "--costs", metavar="FILE", type=FILE, help="Measured costs, of noria bench shapes."
    ),
    click.option("--fitted", is_flag=True, help="Fit a model of a few terms to these costs."),
    click.option(
        "--device",
        metavar="NAME",
        help="Without costs: trn1, trn2, trn3, h200, or a file with a sheet.  [default: target]",
    ),
    click.option("--compile-budget", type=Duration(), help="Until all graphs are compiled."),
    click.option(
        "--workers", type=Number(1), default="1", show_default=True, help="That compile at once."
    ),
    click.option("--memory", type=MemorySize(), help="Of all graphs."),
    click.option(
        "--horizon",
        type=Duration(),
        default="24h",
        show_default=True,
        help="Of such traffic, against which compiling is weighed.",
    ),
    click.option("--max-graphs", type=Number(2), help="Most graphs."),
    click.option(
        "--policy",
        type=click.Choice(("auto", "fill", "cover")),
        default="auto",
        show_default=True,
        help="One padded graph per prompt, or several that fit.",
    ),
    click.option(
        "--prefix",
        type=click.Choice(("exact", "bucketed", "max")),
        help="What prefill pays for of cached tokens: what is there, the next power of two, or "
        "all that a graph has room for.  [default: as the backend's kernels]",
    ),
    click.option(
        "--decode-shape",
        type=click.Choice(("ragged", "product", "list")),
        default="ragged",
        show_default=True,
        help="Pairs of requests and context, all pairs of two lists, or requests only.",
    ),
    click.option(
        "--guard-rail",
        metavar="RATIO",
        default="2.5",
        show_default=True,
        help="Most that neighbouring prefill sizes differ by, or off.",
    ),
    click.option(
        "--must-have", type=Number(1), multiple=True, help="A prefill size that the plan has."
    ),
    click.option("--search", type=Duration(), help="For better decode graphs.  [default: 4s]"),
    click.option("--prove", is_flag=True, help="Prove the decode graphs; needs scipy."),
    click.option(
        "--html", metavar="FILE", type=OutputPath(), help="Where a report as a page goes."
    ),
    click.option("--report", is_flag=True, help="Print the whole report, not a summary."),
    click.option("--prove-for", type=Duration(), default="60s", show_default=True, help="At most."),
)


def plan_options(command: Command) -> Command:
    """Add all options to a command, in their order."""
    for option in reversed(OPTIONS):
        command = option(command)
    return command


def refuse_without_traffic() -> None:
    """Refuse options that only count beside traffic.

    Raises:
        UserMistake: names the first that was written.
    """
    context = click.get_current_context()
    for param in context.command.params:
        source = context.get_parameter_source(param.name or "")
        if param.name not in ("config", "as_json") and source == ParameterSource.COMMANDLINE:
            raise UserMistake(
                f"{param.opts[-1]}: needs traffic to plan for: --trace FILE, or --traffic and the "
                "name of a family"
            )
