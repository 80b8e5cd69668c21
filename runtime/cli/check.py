"""``noria check``: is a configuration valid? Needs no model, no weights and no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import click

from ...bucketing import BucketPlan
from ..config import Config, load_config
from .plan import plan_config


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print every setting, resolved, as JSON.")
def check(config: Path, as_json: bool) -> None:
    """Validate a configuration.

    Reads the file CONFIG and nothing else: no model, no weights. Prints one line.
    """
    settings = load_config(config)
    plan, _ = plan_config(settings)
    if as_json:
        found = {"ok": True, "source": str(config), "config": settings.to_mapping()}
        click.echo(json.dumps(found | {"graphs": [b.label for b in plan.buckets]}, indent=2))
    else:
        click.echo(f"OK {config}: {_essentials(settings, plan)}")


def _essentials(config: Config, plan: BucketPlan) -> str:
    where = f"{config.backend} ({config.target})" if config.target else config.backend
    model = "inline model" if isinstance(config.model, Mapping) else config.model
    return (
        f"{model} on {where} in {config.dtype}, "
        f"max_model_len {config.max_model_len}, max_num_seqs {config.max_num_seqs}, "
        f"prefill graphs: {len(plan.prefill)} (to {config.num_batched_tokens_buckets[-1]} tokens), "
        f"decode graphs: {len(plan.decode)} (to {config.num_seqs_buckets[-1]} requests)"
        f"{_longer_prompts(config)}"
    )


def _longer_prompts(config: Config) -> str:
    """Say so if some prompts that max_model_len allows take several steps."""
    longest = config.num_batched_tokens_buckets[-1]
    if longest >= config.max_model_len - 1:
        return ""
    return f"; prompts of more than {longest} tokens run in chunks"
