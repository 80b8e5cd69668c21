"""Where steps and prompts run in a plan, and what they take there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..buckets import Bucket, BucketPlan
from ..costs.cost import StepCosts
from ..costs.reads import Prefix
from ..plan_file import PlanFile
from ..planner.evaluation import Shapes
from ..policy import CoverPolicy
from ..sets.covering import graph_prefix
from ..sets.demand import Floats, Ints


def graphs_of(buckets: Sequence[Bucket], sizes: Ints, contexts: Ints) -> Ints:
    """Return, for each need, which of the graphs runs it: the first that holds it ``[m]``.

    Args:
        buckets: as a plan keeps them, the cheapest first; the last holds every need.
        sizes: rows or requests ``[m]``.
        contexts: of one request ``[m]``.
    """
    room = np.array([(bucket.size, bucket.context_len) for bucket in buckets])
    fits = (sizes <= room[:, :1]) & (contexts <= room[:, 1:])
    assert fits[-1].all(), "a need is larger than the limit graph"
    chosen: Ints = fits.argmax(axis=0)
    return chosen


def prefill_step_s(
    plan: BucketPlan, shapes: Shapes, costs: StepCosts, prefix: Prefix = "exact"
) -> Floats:
    """Return the seconds of each prefill step ``[m]``, where kernels pay so for cached tokens."""
    rows = np.array([bucket.size for bucket in plan.prefill])
    sent = rows[graphs_of(plan.prefill, shapes.sizes, shapes.contexts)]
    read = graph_prefix(shapes.prefixes, sent, plan.prefill[-1].context_len, prefix)
    return costs.prefill_s(sent, read)


def decode_step_s(plan: BucketPlan, shapes: Shapes, costs: StepCosts) -> Floats:
    """Return the seconds of each decode step ``[m]``."""
    table = np.array([(bucket.num_seqs, bucket.context_len) for bucket in plan.decode])
    sent = table[graphs_of(plan.decode, shapes.sizes, shapes.contexts)]
    live = costs.live_s(shapes.sizes, shapes.live_lens)
    seconds: Floats = costs.decode_s(sent[:, 0], sent[:, 1]) + live
    return seconds


def prompt_s(plan: PlanFile, costs: StepCosts, prefix: Prefix, lengths: Ints) -> Floats:
    """Return what prompts of these lengths take, each alone, in as many steps as the plan says."""
    buckets = plan.bucket_plan().prefill
    chunks = _chunks(plan)
    rows = np.array([bucket.size for bucket in buckets])
    left, done, total = lengths.copy(), np.zeros_like(lengths), np.zeros(len(lengths))
    while left.any():
        runs = np.flatnonzero(left)
        taken = np.minimum(left[runs], chunks[np.minimum(left[runs], len(chunks) - 1)])
        sent = rows[graphs_of(buckets, taken, np.ones_like(taken))]
        read = graph_prefix(done[runs], sent, plan.limits.max_model_len, prefix)
        total[runs] += costs.prefill_s(sent, read)
        done[runs] += taken
        left[runs] -= taken
    return total


def own_prompt_s(
    costs: StepCosts, prefix: Prefix, lengths: Ints, limits: tuple[int, int]
) -> Floats:
    """Return what prompts take if there is a graph for every size.

    Args:
        costs: of steps.
        prefix: what kernels pay for cached tokens.
        lengths: of the prompts, not longer than the context.
        limits: most rows of a step, and the context of graphs.
    """
    max_rows, context_len = limits
    total = np.zeros(len(lengths))
    for start in range(0, int(lengths.max(initial=0)), max_rows):
        runs = np.flatnonzero(lengths > start)
        taken = np.minimum(lengths[runs] - start, max_rows)
        read = graph_prefix(np.full(len(runs), start), taken, context_len, prefix)
        total[runs] += costs.prefill_s(taken, read)
    return total


def _chunks(plan: PlanFile) -> Ints:
    """Return the most rows of the next step by the rows that wait; the last is for any more."""
    policy = plan.step_policy()
    if isinstance(policy, CoverPolicy):
        return np.array(policy.first_chunk, dtype=np.int64)
    return np.full(1, plan.limits.max_prefill_tokens, dtype=np.int64)
