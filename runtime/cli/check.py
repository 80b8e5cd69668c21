"""``noria check``: is a configuration valid? Needs no model, no weights and no torch.

``--graphs`` needs torch and the model's configuration, still no weights and no device.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...bucketing import BucketPlan, PlanFile
from ..config import Config, load_config
from ..lints import Finding, lint
from .failures import SOME_FAILED
from .plan import plan_config, policy_text

if TYPE_CHECKING:
    from .check_graphs import ShownProof


@click.command()
@click.argument("config", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print every setting, resolved, as JSON.")
@click.option("--strict", is_flag=True, help="End with status 1 where there is a warning.")
@click.option(
    "--graphs", is_flag=True, help="Capture every graph for a Neuron device, and prove it static."
)
def check(config: Path, as_json: bool, strict: bool, graphs: bool) -> None:
    """Validate a configuration.

    Reads the file CONFIG, and the plan that it may name: no model, no weights. Prints one line, and
    a warning for each setting that is valid but costs much or does nothing.

    With --graphs every graph is captured as the backend neuron would, on any machine: prints its
    bytes and FLOPs, and which rules of the device's compiler it breaks. Status 1 if one is broken.
    """
    settings = load_config(config)
    plan, limits = plan_config(settings)
    findings = lint(settings, limits, plan)
    proof = None
    if graphs:
        from .check_graphs import prove

        proof = prove(settings)
    if as_json:
        click.echo(_as_json(config, settings, plan, findings, proof))
    else:
        click.echo(f"OK {config}: {_essentials(settings, plan)}")
        for finding in findings:
            click.echo(f"Warning: {finding.text} [{finding.lint}]", err=True)
        if proof is not None:
            click.echo(f"\n{proof.text}")
    if (strict and findings) or (proof is not None and not proof.holds):
        click.get_current_context().exit(SOME_FAILED)


def _as_json(
    source: Path,
    config: Config,
    plan: BucketPlan,
    findings: Sequence[Finding],
    proof: ShownProof | None,
) -> str:
    found: dict[str, object] = {
        "ok": True,
        "source": str(source),
        "config": config.to_mapping(),
        "graphs": [bucket.label for bucket in plan.buckets],
        "lints": [asdict(finding) for finding in findings],
    }
    if proof is not None:
        found["proof"] = proof.mapping
    return json.dumps(found, indent=2)


def _essentials(config: Config, plan: BucketPlan) -> str:
    where = f"{config.backend} ({config.target})" if config.target else config.backend
    model = "inline model" if isinstance(config.model, Mapping) else config.model
    return (
        f"{model} on {where} in {config.dtype}, "
        f"max_model_len {config.max_model_len}, max_num_seqs {config.max_num_seqs}, "
        f"prefill graphs: {len(plan.prefill)} (to {config.num_batched_tokens_buckets[-1]} tokens), "
        f"decode graphs: {len(plan.decode)} (to {config.num_seqs_buckets[-1]} requests)"
        f"{_planned(config)}{_longer_prompts(config)}"
    )


def _planned(config: Config) -> str:
    """Say so if the graphs are those of a plan made from traffic."""
    return f", as planned: {policy_text(config)}" if isinstance(config.buckets, PlanFile) else ""


def _longer_prompts(config: Config) -> str:
    """Say so if some prompts that max_model_len allows take several steps."""
    longest = config.num_batched_tokens_buckets[-1]
    if longest >= config.max_model_len - 1:
        return ""
    return f"; prompts of more than {longest} tokens run in chunks"
