"""The order in which graphs are worth compiling: what saves most per second of it comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..buckets import Bucket, BucketPlan
from ..sets.demand import Floats
from .evaluation import Shapes

SHORTEST_S = 1e-9
"""Of compiling, as far as the order goes: a graph that costs nothing comes first if it saves."""


@dataclass(frozen=True, slots=True)
class WarmUpPoint:
    """After one more graph.

    Attributes:
        label: of the graph.
        compile_s: seconds of one worker up to here.
        seconds: that all steps take with the graphs so far; infinite while a limit graph lacks.
    """

    label: str
    compile_s: float
    seconds: float


def warm_up_order(
    plan: BucketPlan,
    prefill: Shapes,
    decode: Shapes,
    compile_s: Callable[[Bucket], float],
    live_s: float = 0.0,
) -> tuple[WarmUpPoint, ...]:
    """Return all graphs of a plan, the limit graphs first, then by what they save.

    Each next graph is the one that saves most per second of compiling, beside those before it;
    of equal ones the first of the plan. What saves nothing comes last.

    Args:
        plan: with the seconds of its graphs.
        prefill: steps of prompts.
        decode: steps of running requests.
        compile_s: seconds that one worker takes for a graph.
        live_s: seconds of all steps that no graph saves.
    """
    phases = [_Phase(plan, plan.prefill, prefill), _Phase(plan, plan.decode, decode)]
    points: list[WarmUpPoint] = []
    spent = 0.0

    def take(phase: _Phase, bucket: Bucket) -> None:
        nonlocal spent
        phase.take(bucket)
        spent += compile_s(bucket)
        seconds = live_s + sum(one.seconds for one in phases)
        points.append(WarmUpPoint(bucket.label, spent, seconds))

    for phase in phases:
        take(phase, phase.left[-1])
    while any(phase.left for phase in phases):
        rated = [
            (phase.saving(bucket) / max(compile_s(bucket), SHORTEST_S), phase, bucket)
            for phase in phases
            for bucket in phase.left
        ]
        _, phase, bucket = max(rated, key=lambda one: one[0])
        take(phase, bucket)
    return tuple(points)


class _Phase:
    """Steps of a phase and what they take with the graphs that are there."""

    def __init__(self, plan: BucketPlan, buckets: Sequence[Bucket], shapes: Shapes) -> None:
        self.left = [*buckets]
        self._plan = plan
        self._shapes = shapes
        self._times: Floats = np.where(shapes.weights > 0, np.inf, 0.0)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return float((self._times * np.where(self._times > 0, self._shapes.weights, 0.0)).sum())

    def saving(self, bucket: Bucket) -> float:
        """Return the seconds that the graph would save now."""
        return float(((self._times - self._with(bucket)) * self._shapes.weights).sum())

    def take(self, bucket: Bucket) -> None:
        """Let the graph be there."""
        self._times = self._with(bucket)
        self.left.remove(bucket)

    def _with(self, bucket: Bucket) -> Floats:
        shapes = self._shapes
        fits = (shapes.sizes <= bucket.size) & (shapes.contexts <= bucket.context_len)
        return np.where(fits, np.minimum(self._times, self._plan.seconds[bucket]), self._times)
