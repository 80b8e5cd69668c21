"""What would change: other limits, other budgets, a graph more or less."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..buckets import Bucket, DecodeBucket, PrefillBucket
from ..plan import PlanLimits
from ..plan_file import PlanFile, PlanFileError
from .outcome import Outcome, buckets_of, outcome
from .planner import make_plan
from .problem import Problem, plan_of

DECODE_GRAPH = re.compile(r"(\d{1,10})x(\d{1,10})", re.ASCII)
PREFILL_GRAPH = re.compile(r"\d{1,10}", re.ASCII)


def without(problem: Problem, plan: PlanFile, label: str) -> Outcome:
    """Return what the plan does without one of its graphs.

    Raises:
        PlanFileError: there is no such graph, or it is one that nothing can replace.
    """
    buckets = buckets_of(plan)
    left = [bucket for bucket in buckets if bucket.label != label]
    if len(left) == len(buckets):
        raise PlanFileError(f"{label}: is no graph of the plan, which has {_listed(buckets)}")
    try:
        return _changed(problem, plan, left)
    except ValueError as error:
        raise PlanFileError(f"{label}: cannot be dropped: {error}") from None


def with_graph(problem: Problem, plan: PlanFile, text: str) -> Outcome:
    """Return what the plan does with one graph more.

    Args:
        problem: with the traffic.
        plan: without the graph.
        text: tokens of a prefill graph, ``640``; or requests and context of a decode graph,
            ``8x2048``.

    Raises:
        PlanFileError: the text is no graph, or none that the limits allow.
    """
    bucket = _read_graph(text, plan.limits)
    buckets = buckets_of(plan)
    if bucket in buckets:
        raise PlanFileError(f"{text}: the plan has {bucket.label} already")
    try:
        return _changed(problem, plan, [*buckets, bucket])
    except ValueError as error:
        raise PlanFileError(f"{text}: cannot be added: {error}") from None


def planned_anew(problem: Problem, **budget: float) -> Outcome:
    """Return what a new plan does, for a budget with some amounts changed.

    Raises:
        BudgetError: no plan keeps within it.
    """
    changed = replace(problem, budget=replace(problem.budget, **budget))  # type: ignore[arg-type]
    return outcome(changed, make_plan(changed).plan)


def planned_for_length(problem: Problem, max_model_len: int) -> Outcome:
    """Return what a new plan does if requests may have at most so many tokens.

    Longer contexts among the steps end there.

    Raises:
        ValueError: no plan has that limit.
    """
    changed = replace(problem, limits=replace(problem.limits, max_model_len=max_model_len))
    return outcome(changed, make_plan(changed).plan)


def _changed(problem: Problem, plan: PlanFile, buckets: Sequence[Bucket]) -> Outcome:
    prefill = [bucket for bucket in buckets if isinstance(bucket, PrefillBucket)]
    decode = [bucket for bucket in buckets if isinstance(bucket, DecodeBucket)]
    if not prefill or not decode:
        raise ValueError("every phase needs a graph")
    return outcome(problem, plan_of(problem, prefill, decode, plan.policy))


def _read_graph(text: str, limits: PlanLimits) -> Bucket:
    try:
        if PREFILL_GRAPH.fullmatch(text):
            return PrefillBucket(int(text), limits.max_model_len)
        if match := DECODE_GRAPH.fullmatch(text):
            return DecodeBucket(int(match[1]), int(match[2]), limits.query_len)
    except ValueError as error:
        raise PlanFileError(f"{text}: {error}") from None
    raise PlanFileError(
        f"{text!r:.60}: is no graph; write tokens of a prefill graph, 640, or requests and "
        "context of a decode graph, 8x2048"
    )


def _listed(buckets: Sequence[Bucket]) -> str:
    return ", ".join(bucket.label for bucket in buckets)
