"""What must be true of a plan beside the configuration that names it."""

from __future__ import annotations

from dataclasses import fields

from ..bucketing import MAX_NUM_GRAPHS, PlanFile, PlanLimits
from .planning import planned_limits
from .settings import Config
from .target_shapes import target_shapes
from .typed_reader import refuse

TARGET_LIMITS = ("prefill_tile", "fold_blocks")
"""Limits that a backend sets."""


def check_plan(config: Config, place: str) -> None:
    """Refuse a plan that was made for other limits or another backend; a spacing rule passes.

    Args:
        config: resolved.
        place: what errors begin with.

    Raises:
        ConfigError: names the limit and both of its values.
    """
    if isinstance(config.buckets, PlanFile):
        _check_limits(config, config.buckets, place)
        _check_contexts(config, config.buckets, place)
        _check_num_graphs(config.buckets, place)


def _check_limits(config: Config, plan: PlanFile, place: str) -> None:
    needed = planned_limits(config)
    for limit in fields(PlanLimits):
        planned, value = getattr(plan.limits, limit.name), getattr(needed, limit.name)
        if planned == value:
            continue
        problem = f"is {planned} in the plan"
        if limit.name in TARGET_LIMITS:
            fits = f"{value} on backend {config.backend}: make a plan for this backend"
        elif limit.name == "num_speculative_tokens":
            fits = f"must be {value}, as nothing is speculated"
        else:
            fits = f"{value} in the configuration: make them equal, or another plan"
        refuse(f"{place}: limits.{limit.name}", problem, fits)


def _check_contexts(config: Config, plan: PlanFile, place: str) -> None:
    """Require contexts of whole tiles: tables are as wide as whole ones, and so are the masks."""
    tile = target_shapes(config.backend).prefill_tile
    for graph in (*plan.prefill, *plan.decode):
        context_len = graph.bucket.context_len
        if context_len % tile and context_len != plan.limits.max_model_len:
            fits = f"must be a multiple of {tile} on backend {config.backend}"
            refuse(f"{place}: {graph.bucket.label}", f"has a context of {context_len}", fits)


def _check_num_graphs(plan: PlanFile, place: str) -> None:
    num_graphs = len(plan.prefill) + len(plan.decode)
    if num_graphs > MAX_NUM_GRAPHS:
        refuse(place, f"has {num_graphs} graphs", f"a plan has at most {MAX_NUM_GRAPHS}")
