"""What a plan is worth for given steps: padding and seconds, as a whole and graph by graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..buckets import Bucket, BucketPlan
from ..costs.cost import StepCosts
from ..costs.reads import Prefix
from ..sets.covering import graph_prefix
from ..sets.demand import Floats, Ints
from .simulation import Steps


@dataclass(frozen=True, slots=True, eq=False)
class Shapes:
    """Steps of one phase, m different ones.

    Attributes:
        sizes: rows of prefill steps, requests of decode steps ``[m]``.
        tokens: real tokens of a step ``[m]``.
        contexts: the longest of a step ``[m]``.
        prefixes: cached tokens that a row of a prefill step attends to; 0 for decode steps ``[m]``.
        live_lens: tokens that a request of a decode step has on average; 0 for prefill ``[m]``.
        weights: how many steps there are ``[m]``.
    """

    sizes: Ints
    tokens: Ints
    contexts: Ints
    prefixes: Ints
    live_lens: Floats
    weights: Floats

    @classmethod
    def of_prefill(cls, steps: Steps) -> Shapes:
        """Return the prefill steps of a simulation."""
        table = sorted(steps.prefill_shapes.items())
        shapes = np.array([shape for shape, _ in table], dtype=np.int64).reshape(-1, 4)
        weights = np.array([count for _, count in table], dtype=np.float64)
        sizes, tokens, contexts, prefixes = shapes.T
        return cls(sizes, tokens, contexts, prefixes, np.zeros(len(sizes)), weights)

    @classmethod
    def of_decode(cls, steps: Steps) -> Shapes:
        """Return the decode steps of a simulation."""
        demand = steps.decode
        none = np.zeros_like(demand.num_seqs)
        return cls(
            demand.num_seqs,
            demand.num_seqs,
            demand.context_lens,
            none,
            demand.live_lens,
            demand.weights,
        )


@dataclass(frozen=True, slots=True)
class GraphUse:
    """One graph and what it does in the given steps.

    Attributes:
        bucket: the graph.
        num_steps: that run in it.
        num_tokens: real ones that it runs.
        num_padded_tokens: that it runs with padding.
        seconds: of these steps.
        saved_s: seconds by which they would take longer without the graph; infinite for a limit
            graph, which nothing can replace.
    """

    bucket: Bucket
    num_steps: float
    num_tokens: float
    num_padded_tokens: float
    seconds: float
    saved_s: float


@dataclass(frozen=True, slots=True)
class PhaseUse:
    """One phase of a plan in the given steps.

    Attributes:
        graphs: in the plan's order, the cheapest first.
        floor_s: seconds if there were a graph for every shape.
    """

    graphs: tuple[GraphUse, ...]
    floor_s: float

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return sum(graph.seconds for graph in self.graphs)

    @property
    def num_tokens(self) -> float:
        """Real ones."""
        return sum(graph.num_tokens for graph in self.graphs)

    @property
    def num_padded_tokens(self) -> float:
        """Tokens that run, padding included."""
        return sum(graph.num_padded_tokens for graph in self.graphs)

    @property
    def waste(self) -> float:
        """Padded tokens beside the real ones, as a share of these; 0 where there are none."""
        return self.num_padded_tokens / self.num_tokens - 1 if self.num_tokens else 0.0

    @property
    def time_waste(self) -> float:
        """Seconds beside those of a graph for every shape, as a share of these."""
        return self.seconds / self.floor_s - 1 if self.floor_s else 0.0


def use_of_prefill(
    plan: BucketPlan, shapes: Shapes, costs: StepCosts, prefix: Prefix = "exact"
) -> PhaseUse:
    """Return what the prefill graphs of a plan do in these steps.

    They pay for cached tokens as ``prefix`` says, graphs of exactly their shapes for what is there.
    """
    rows = np.array([[bucket.num_tokens] for bucket in plan.prefill])
    contexts = np.array([[bucket.context_len] for bucket in plan.prefill])
    times = costs.prefill_s(rows, graph_prefix(shapes.prefixes, rows, contexts, prefix))
    return _use(plan.prefill, times, shapes, costs.prefill_s(shapes.sizes, shapes.prefixes))


def use_of_decode(plan: BucketPlan, shapes: Shapes, costs: StepCosts) -> PhaseUse:
    """Return what the decode graphs of a plan do in these steps."""
    times = np.array([[plan.seconds[bucket]] for bucket in plan.decode])
    live = costs.live_s(shapes.sizes, shapes.live_lens)
    return _use(plan.decode, times + live, shapes, real_decode_s(shapes, costs))


def real_decode_s(shapes: Shapes, costs: StepCosts) -> Floats:
    """Return the seconds of each decode step in a graph of exactly its shape ``[m]``."""
    own = costs.decode_s(shapes.sizes, shapes.contexts)
    seconds: Floats = own + costs.live_s(shapes.sizes, shapes.live_lens)
    return seconds


def real_seconds(steps: Steps, costs: StepCosts) -> float:
    """Return what steps take one after the other in graphs of exactly their shapes."""
    prefill, decode = Shapes.of_prefill(steps), Shapes.of_decode(steps)
    seconds = costs.prefill_s(prefill.sizes, prefill.prefixes) @ prefill.weights
    return float(seconds + real_decode_s(decode, costs) @ decode.weights)


def _use(buckets: Sequence[Bucket], times: Floats, shapes: Shapes, floor: Floats) -> PhaseUse:
    """Send every step to the first of the graphs that holds it.

    Args:
        buckets: the cheapest first.
        times: seconds of each step in each of them ``[buckets, m]``.
        shapes: the steps.
        floor: seconds of each of them in a graph of its own ``[m]``.
    """
    fits = np.array(
        [(shapes.sizes <= b.size) & (shapes.contexts <= b.context_len) for b in buckets]
    ).reshape(len(buckets), -1)
    if not fits.any(axis=0).all():
        raise ValueError("a step is larger than every graph of the plan")
    chosen = fits.argmax(axis=0)
    graphs = [
        _graph_use(buckets, times, shapes, fits, at, np.flatnonzero(chosen == at))
        for at in range(len(buckets))
    ]
    return PhaseUse(tuple(graphs), float((floor * shapes.weights).sum()))


def _graph_use(
    buckets: Sequence[Bucket], times: Floats, shapes: Shapes, fits: Ints, at: int, own: Ints
) -> GraphUse:
    """Return the use of graph ``at``, which runs the shapes ``own``."""
    bucket, weights = buckets[at], shapes.weights[own]
    num_steps = float(weights.sum())
    others = fits[:, own].copy()
    others[at] = False
    is_limit = at == len(buckets) - 1
    here = times[at, own]
    without = times[others.argmax(axis=0), own] if not is_limit else np.full(len(own), np.inf)
    return GraphUse(
        bucket=bucket,
        num_steps=num_steps,
        num_tokens=float((shapes.tokens[own] * weights).sum()),
        num_padded_tokens=num_steps * bucket.num_rows,
        seconds=float((here * weights).sum()),
        saved_s=float(((without - here) * weights).sum()) if len(own) else 0.0,
    )
