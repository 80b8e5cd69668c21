"""``noria plan``: the graphs of a configuration and what their padding costs, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from ...bucketing import BucketPlan, GraphRow, PlanFile, PlanLimits, PlanTable, describe
from ..config import Config, load_config
from ..planning import bucket_plan, planned_limits
from .plan_options import plan_options, refuse_without_traffic
from .tables import format_table, percent

HEADER = (
    "graph",
    "rows",
    "context",
    "table width",
    "smallest need",
    "worst padding",
    "expected padding",
    "relative work",
)


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")
@plan_options
def plan(config: Path, as_json: bool, **given: Any) -> None:
    """Show the graphs that a configuration compiles, or make a plan from traffic.

    Without traffic: padding is the share of a graph's rows that hold no token: at worst when a
    step has the smallest need for which the graph is chosen; expected where all its needs are as
    frequent. Work is relative to the largest graph of the same phase, in seconds where a plan
    knows them; where prompt_logprobs is listed, score graphs are a phase, too. Needs no model.

    With --trace or --traffic: chooses the graphs that serve this traffic in the least time, within
    the budget, and writes a plan that the setting buckets may name. Needs the model's config.json,
    but neither weights nor a device. Times are 90s, 15m or 24h, sizes 512MiB or 2GiB.
    """
    if given["trace"] is not None or given["traffic"] is not None:
        from .plan_traffic import plan_for_traffic

        plan_for_traffic(config, {**given, "as_json": as_json})
        return
    refuse_without_traffic()
    settings = load_config(config)
    table = describe(*plan_config(settings))
    click.echo(_as_json(table, settings) if as_json else _as_text(table, settings))


def plan_config(config: Config) -> tuple[BucketPlan, PlanLimits]:
    """Return the plan of a configuration with the alignment of its backend."""
    limits = planned_limits(config)
    return bucket_plan(config, limits), limits


def policy_text(config: Config) -> str:
    """Say how prompts fill steps; the chunks of a plan that covers them are sizes of graphs."""
    longest = config.num_batched_tokens_buckets[-1]
    if not isinstance(config.buckets, PlanFile) or config.buckets.policy == "fill":
        return f"prompts fill steps of up to {longest} tokens"
    chunks = sorted({chunk for _, chunk in config.buckets.chunks})
    return f"prompts are covered by chunks of {', '.join(map(str, chunks))} tokens"


def _as_text(table: PlanTable, config: Config) -> str:
    rows = [
        (
            row.label,
            str(row.num_rows),
            str(row.context_len),
            str(row.table_width),
            str(row.smallest_need),
            percent(row.worst_padding),
            percent(row.expected_padding),
            percent(row.relative_work),
        )
        for row in table.rows
    ]
    lines = [format_table(HEADER, rows), "", _totals_text(table)]
    if isinstance(config.buckets, PlanFile):
        lines.append(policy_text(config))
    return "\n".join(lines)


def _totals_text(table: PlanTable) -> str:
    counts = {phase: _count(table, phase) for phase in ("prefill", "decode", "score")}
    counted = ", ".join(f"{count} {phase}" for phase, count in counts.items() if count)
    return (
        f"{table.num_graphs} graphs: {counted}; "
        f"at worst {percent(table.worst_padding)} of a step is padding"
    )


def _as_json(table: PlanTable, config: Config) -> str:
    totals = {
        "num_graphs": table.num_graphs,
        "num_prefill_graphs": _count(table, "prefill"),
        "num_decode_graphs": _count(table, "decode"),
        "num_score_graphs": _count(table, "score"),
        "worst_padding": table.worst_padding,
        "policy": config.buckets.policy if isinstance(config.buckets, PlanFile) else "fill",
    }
    return json.dumps({"graphs": [_row_fields(row) for row in table.rows], **totals}, indent=2)


def _row_fields(row: GraphRow) -> dict[str, object]:
    return {
        "label": row.label,
        "phase": row.phase,
        "num_rows": row.num_rows,
        "context_len": row.context_len,
        "table_width": row.table_width,
        "smallest_need": row.smallest_need,
        "worst_padding": row.worst_padding,
        "expected_padding": row.expected_padding,
        "relative_work": row.relative_work,
    }


def _count(table: PlanTable, phase: str) -> int:
    return sum(row.phase == phase for row in table.rows)
