"""The files of a set that say what it was compiled for: its plan and its configuration."""

from __future__ import annotations

import json
from dataclasses import asdict

import yaml

from ...bucketing import describe
from ...kernels.kernel_set import KernelSet
from ..assembly import limits_of
from ..config import Config
from ..planning import bucket_plan

PLAN = "plan.json"
CONFIG = "config.yaml"


def description(config: Config, kernels: KernelSet) -> dict[str, bytes]:
    """Return the plan as ``noria plan`` shows it, and every setting, by their paths in a set."""
    resolved = yaml.safe_dump(config.to_mapping(), sort_keys=False)
    return {PLAN: _plan_text(config, kernels).encode(), CONFIG: resolved.encode()}


def _plan_text(config: Config, kernels: KernelSet) -> str:
    limits = limits_of(config, kernels)
    table = describe(bucket_plan(config, limits), limits)
    graphs = [{"label": row.label, "phase": row.phase, **asdict(row)} for row in table.rows]
    return f"{json.dumps({'graphs': graphs}, indent=1)}\n"
