"""From a configuration to its bucket plan and graph layout; needs no model.

A plan needs no torch either, which the modules of graphs and kernels import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..bucketing import (
    BucketLists,
    BucketPlan,
    FillPolicy,
    PlanFile,
    PlanLimits,
    StepPolicy,
    plan_buckets,
)
from .settings import Config
from .target_shapes import target_shapes

if TYPE_CHECKING:
    from ..kernels.contract import KVGroup
    from ..kernels.kernel_set import KernelSet
    from .graph_spec import GraphLayout


def plan_limits(config: Config, *, prefill_tile: int = 1, fold_blocks: int = 1) -> PlanLimits:
    """Return the limits of a configuration, with the alignment of a target."""
    return PlanLimits(
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        max_num_prefill_seqs=config.max_num_prefill_seqs,
        block_size=config.block_size,
        prefill_tile=prefill_tile,
        fold_blocks=fold_blocks,
    )


def planned_limits(config: Config) -> PlanLimits:
    """Return the limits of a configuration with the alignment of its backend."""
    shapes = target_shapes(config.backend)
    return plan_limits(config, prefill_tile=shapes.prefill_tile, fold_blocks=shapes.fold_blocks)


def bucket_plan(config: Config, limits: PlanLimits) -> BucketPlan:
    """Return every bucket of a configuration."""
    has_scores = "prompt_logprobs" in config.sampler_features
    if isinstance(config.buckets, PlanFile):
        return config.buckets.bucket_plan(has_scores=has_scores)
    lists = BucketLists(
        num_batched_tokens=config.num_batched_tokens_buckets,
        num_seqs=config.num_seqs_buckets,
        prefill_context=config.prefill_context_length_buckets,
        decode_context=config.decode_context_length_buckets,
    )
    return plan_buckets(limits, lists, has_scores=has_scores)


def step_policy(config: Config, limits: PlanLimits) -> StepPolicy:
    """Return how prompts fill a step: as the plan says, otherwise the largest graph."""
    if isinstance(config.buckets, PlanFile):
        return config.buckets.step_policy()
    return FillPolicy.of(limits, limits.max_prefill_tokens)


def graph_layout(
    config: Config, kernels: KernelSet, groups: Sequence[KVGroup], *, has_experts: bool = False
) -> GraphLayout:
    """Return what the shapes of graphs depend on besides their buckets."""
    from .graph_spec import GraphLayout, GroupLayout

    return GraphLayout(
        groups=tuple(GroupLayout(group.block_size, group.window) for group in groups),
        max_num_prefill_seqs=config.max_num_prefill_seqs,
        prefill_tile=kernels.prefill_tile,
        fold_blocks=kernels.fold_blocks,
        has_experts=has_experts,
    )
