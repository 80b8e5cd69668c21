"""Plans from traffic: what ``noria plan`` does with a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..config import Config, parse_config
from ..counted_engine import engine_without_weights
from ..errors import ConfigError
from ..plan_setting import KEY, plan_path
from ..yaml_reader import read_yaml
from .failures import UserMistake, user_file

if TYPE_CHECKING:
    from ...bucketing.traces.counted_engine import CountedEngine
    from ...bucketing.traces.trace import Trace
    from .traffic import TokenIds

NEED_TRAFFIC = "needs traffic to plan for: --trace FILE, or --traffic and the name of a family"


def plan_for_traffic(config: Path, given: Mapping[str, Any]) -> None:
    """Make a plan, write it and say what it is worth.

    Args:
        config: file of the configuration.
        given: options of the command, by their names.
    """
    from ...bucketing.report.data import json_report
    from ...bucketing.report.page import html_report
    from ...bucketing.report.text import text_report
    from ..plan_files import write_plan
    from ..plan_making import make_planned_file
    from ..plan_problem import plan_task
    from ..plan_report import report_plan
    from ..trace_files import holds_counters, read_counters_file
    from .plan_summary import summary_json, summary_text

    output = given["output"]
    _check_outputs(config, given)  # before seconds are spent
    settings, running = _settings(config)
    options = _options(given)
    if given["trace"] is not None and given["traffic"] is None and holds_counters(given["trace"]):
        _refuse_of_requests(given)
        counters = read_counters_file(given["trace"])
        task, name = (
            plan_task(settings, None, options, counters=counters, running=running),
            given["trace"].name,
        )
    else:
        trace, name = read_or_draw(settings, given["trace"], given["traffic"], chat=given["chat"])
        task = plan_task(settings, trace, options)
    made = make_planned_file(task, trace_name=name)
    if output is not None:
        with user_file(output):
            write_plan(made.file, output)
    if given["html"] is None and not given["report"]:
        click.echo(summary_json(made) if given["as_json"] else summary_text(made, output))
        return
    report = report_plan(made, has_traffic_cases=True)
    if given["html"] is not None:
        with user_file(given["html"]):
            given["html"].write_text(html_report(report), encoding="utf-8")
    if given["report"]:
        click.echo(json_report(report) if given["as_json"] else text_report(report), nl=False)
    else:
        click.echo(summary_json(made) if given["as_json"] else summary_text(made, output))


def _check_outputs(config: Path, given: Mapping[str, Any]) -> None:
    """Refuse files that cannot be written, and those that would replace what is read."""
    taken = {"CONFIG": config, **{f"--{name}": given[name] for name in ("trace", "costs")}}
    for name in ("output", "html"):
        path: Path | None = given[name]
        if path is None:
            continue
        if not path.parent.is_dir():
            raise UserMistake(f"{path}: there is no folder {path.parent}")
        for other, used in taken.items():
            if used is not None and path.resolve() == Path(used).resolve():
                raise UserMistake(f"--{name}: {path} is the file of {other}; name another")
        taken[f"--{name}"] = path


def _refuse_of_requests(given: Mapping[str, Any]) -> None:
    """Refuse what selects or changes single requests, where only steps are known."""
    for name in ("head", "scale"):
        if given[name]:
            path = given["trace"]
            raise UserMistake(f"--{name}: {path} holds counted steps, not single requests")


def _settings(path: Path) -> tuple[Config, CountedEngine | None]:
    """Read a configuration without the plan that it may name, and the engine that runs that one.

    The plan may not be there yet, or be one for other limits, which is why a new one is made.
    """
    given = read_yaml(path)
    is_plan = plan_path(given) is not None
    if not isinstance(given, Mapping) or not (is_plan or isinstance(given.get(KEY), Mapping)):
        return parse_config(given, source=str(path)), None
    settings = parse_config({k: v for k, v in given.items() if k != KEY}, source=str(path))
    try:
        with_its_plan = parse_config(given, source=str(path), folder=path.parent)
    except ConfigError:  # nobody knows then what graphs it ran
        return settings, replace(engine_without_weights(settings), policy=None, plan_key=None)
    return settings, engine_without_weights(with_its_plan)


def read_or_draw(
    config: Config, path: Path | None, family: str | None, *, chat: bool = False
) -> tuple[Trace, str]:
    """Return the traffic of a file or of a family, and its name for people.

    Raises:
        UserMistake: neither or both are given, or the file holds nothing that can run.
        NoriaError: it is no trace.
    """
    from ...bucketing.traces.families import draw_trace
    from .traffic import read_traffic

    if (path is None) == (family is None):
        both = path is not None
        raise UserMistake(f"--trace: {'is given, and --traffic is, too' if both else NEED_TRAFFIC}")
    if path is None:
        return draw_trace(str(family)), f"synthetic {family}"
    with user_file(path):
        trace = read_traffic(path, lambda: _tokenizer(config), config.sampling, chat=chat)
    return trace, path.name


def _tokenizer(config: Config) -> TokenIds:
    """Load what counts the tokens of prompts."""
    from ..models.sources import open_model
    from ..request_texts import RequestTexts

    source = open_model(config.model, tokenizer=config.tokenizer)
    texts = RequestTexts(
        source.tokenizer,
        vocab_size=source.architecture.vocab_size,
        end_token_ids=source.eos_token_ids,
    )
    return texts.token_ids


def _options(given: Mapping[str, Any]) -> Any:
    from ...bucketing.planner.budget import Budget
    from ..plan_problem import PlanOptions

    if given["prove"]:
        _require_scipy()
    budget = Budget(
        compile_s=_or(given["compile_budget"], inf),
        workers=given["workers"],
        num_bytes=_or(given["memory"], inf),
        max_num_graphs=_or(given["max_graphs"], inf),
        horizon_s=given["horizon"],
    )
    rail = given["guard_rail"]
    names = ("costs", "fitted", "device", "policy", "prefix", "decode_shape", "scale", "head")
    options = PlanOptions(
        **{name: given[name] for name in names},
        budget=budget,
        must_have=tuple(map(int, given["must_have"])),
        max_ratio=None if rail == "off" else _ratio(rail),
        prove_s=given["prove_for"] if given["prove"] else 0.0,
    )
    return options if given["search"] is None else replace(options, search_s=given["search"])


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if not 1 < ratio < inf:
        raise UserMistake(f"--guard-rail: is {text!r:.60}; must be a number above 1, or off")
    return ratio


def _require_scipy() -> None:
    from importlib.util import find_spec

    if find_spec("scipy") is None:
        raise UserMistake("--prove: needs scipy; run: pip install 'noria[prove]'")
