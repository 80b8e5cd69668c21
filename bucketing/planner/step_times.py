"""How long a simulated step takes: on real shapes, or on the graphs of a plan."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from ..buckets import BucketPlan, PrefillBucket
from ..costs.cost import StepCosts
from ..costs.reads import Prefix
from ..sets.covering import graph_prefix

PREFIX_STEP = 64
"""Prefixes and mean contexts are rounded up to multiples of it: neighbours take as long."""


class StepTimes(Protocol):
    """Seconds of steps, by what they hold."""

    @abstractmethod
    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        """Return the seconds of a prefill step.

        Args:
            num_rows: with the gaps of its alignment.
            prefix_len: cached tokens that a row attends to, on average.
            context_len: the longest cached plus new tokens of any of them.
        """
        ...

    @abstractmethod
    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        """Return the seconds of a decode step, by its longest and its mean context."""
        ...


class RealShapes(StepTimes):
    """As if there were a graph for every shape: rows and contexts cost what they really are."""

    def __init__(self, costs: StepCosts) -> None:
        """Ask these costs, once per shape."""
        self._costs = costs
        self._prefill: dict[tuple[int, int], float] = {}
        self._decode: dict[tuple[int, int], float] = {}

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        """Return the seconds of a step of exactly these rows."""
        key = (num_rows, -(-prefix_len // PREFIX_STEP))
        if key not in self._prefill:
            self._prefill[key] = float(self._costs.prefill_s(num_rows, key[1] * PREFIX_STEP))
        return self._prefill[key]

    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        """Return the seconds of a step that reads what its requests have cached."""
        key = (num_seqs, int(-(-mean_context // PREFIX_STEP)))
        if key not in self._decode:
            shape = (num_seqs, key[1] * PREFIX_STEP)
            seconds = self._costs.decode_s(*shape) + self._costs.live_s(*shape)
            self._decode[key] = float(seconds)
        return self._decode[key]


class PlannedShapes(StepTimes):
    """Every step runs in the cheapest graph of a plan that holds it."""

    def __init__(self, plan: BucketPlan, costs: StepCosts, prefix: Prefix = "exact") -> None:
        """Run in these graphs.

        Args:
            plan: the graphs.
            costs: of their steps.
            prefix: what prefill steps pay for of cached tokens.
        """
        self._plan = plan
        self._costs = costs
        self._prefix = prefix
        self._prefill: dict[tuple[PrefillBucket, int], float] = {}
        self._decode: dict[tuple[int, int], float] = {}
        self._live: dict[tuple[int, int], float] = {}
        self._bucket_s: dict[tuple[int, int], float] = {}

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        """Return the seconds of the graph that the step runs in."""
        bucket = self._plan.pick_prefill(num_rows, context_len)
        key = (bucket, -(-prefix_len // PREFIX_STEP))
        if key not in self._prefill:
            self._prefill[key] = self._bucket_prefill_s(bucket, key[1] * PREFIX_STEP)
        return self._prefill[key]

    def _bucket_prefill_s(self, bucket: PrefillBucket, prefix_len: int) -> float:
        # What was rounded up must not be more than any graph has room for.
        held = min(prefix_len, bucket.context_len)
        read = graph_prefix(held, bucket.num_tokens, bucket.context_len, self._prefix)
        return float(self._costs.prefill_s(bucket.num_tokens, read))

    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        """Return the seconds of the graph that the step runs in, and of what is cached."""
        live = (num_seqs, int(-(-mean_context // PREFIX_STEP)))
        if live not in self._live:
            self._live[live] = float(self._costs.live_s(num_seqs, live[1] * PREFIX_STEP))
        return self._graph_s(num_seqs, context_len) + self._live[live]

    def _graph_s(self, num_seqs: int, context_len: int) -> float:
        key = (num_seqs, context_len)
        if key not in self._decode:
            bucket = self._plan.pick_decode(num_seqs, context_len)
            shape = (bucket.num_seqs, bucket.context_len)
            if shape not in self._bucket_s:
                self._bucket_s[shape] = float(self._costs.decode_s(*shape))
            self._decode[key] = self._bucket_s[shape]
        return self._decode[key]


class EachPhase(StepTimes):
    """Prefill steps as one source has them, decode steps as another."""

    def __init__(self, prefill: StepTimes, decode: StepTimes) -> None:
        """Ask these two."""
        self._prefill = prefill
        self._decode = decode

    def prefill_s(self, num_rows: int, prefix_len: int, context_len: int) -> float:
        """Return what the first source says."""
        return self._prefill.prefill_s(num_rows, prefix_len, context_len)

    def decode_s(self, num_seqs: int, context_len: int, mean_context: float) -> float:
        """Return what the second source says."""
        return self._decode.decode_s(num_seqs, context_len, mean_context)
