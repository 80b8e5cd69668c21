"""The proof that no step is without a graph: every shape within the limits is looked at."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ..buckets import Bucket
from ..plan_file import PlanFile
from ..policy import CoverPolicy
from .values import Coverage


def coverage(plan: PlanFile) -> tuple[Coverage, ...]:
    """Return the count of shapes of both phases and of those that a graph holds."""
    limits, buckets = plan.limits, plan.bucket_plan()
    context_len = limits.max_model_len
    return (
        count_shapes("prefill", buckets.prefill, most_rows(plan), context_len),
        count_shapes("decode", buckets.decode, limits.max_num_seqs, context_len),
    )


def most_rows(plan: PlanFile) -> int:
    """Return the rows that a prefill step has at most: where prompts are covered, a chunk's."""
    policy = plan.step_policy()
    if isinstance(policy, CoverPolicy):
        return max(policy.first_chunk)
    return plan.limits.max_prefill_tokens


def count_shapes(
    phase: str, buckets: Sequence[Bucket], max_size: int, context_len: int
) -> Coverage:
    """Return how many shapes of sizes and contexts from 1 to these there are, with a graph or not.

    Shapes between two neighbouring sizes, and two neighbouring contexts, of graphs fit the same
    ones, so each such cell is looked at once, at its largest corner.
    """
    num_covered, missing, used = 0, None, set()
    for low, high in _cells([bucket.size for bucket in buckets], max_size):
        for start, end in _cells([bucket.context_len for bucket in buckets], context_len):
            graph = _first_fit(buckets, high, end)
            if graph is None:
                missing = missing or (low + 1, start + 1)
                continue
            num_covered += (high - low) * (end - start)
            used.add(graph.label)
    return Coverage(
        phase=phase,
        max_size=max_size,
        max_context_len=context_len,
        num_shapes=max_size * context_len,
        num_covered=num_covered,
        missing=missing,
        idle=tuple(bucket.label for bucket in buckets if bucket.label not in used),
    )


def _cells(ends: Sequence[int], limit: int) -> list[tuple[int, int]]:
    """Cut 1 to ``limit`` behind each of the ends: (what is before a cell, its last)."""
    inside = {end for end in ends if end < limit}
    return list(pairwise([0, *sorted(inside), limit]))


def _first_fit(buckets: Sequence[Bucket], size: int, context_len: int) -> Bucket | None:
    for bucket in buckets:
        if size <= bucket.size and context_len <= bucket.context_len:
            return bucket
    return None
