"""The sets of graphs that a plan may have for each phase, for every number of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np

from ..buckets import Bucket, DecodeBucket, PrefillBucket
from ..costs.cost import StepCosts
from ..costs.reads import charged_prefix
from ..ladder import SEQS, TOKENS, powers_of_two
from ..plan import PlanLimits
from ..plan_file import PolicyName
from ..sets.cover_search import best_covering_sizes
from ..sets.covering import cover_table
from ..sets.decode import DecodeSet, best_list, best_product, best_ragged, floor_cost
from ..sets.demand import DecodeDemand, Floats, Ints, PrefillDemand
from ..sets.prefill import best_sizes, padded_cost
from ..sets.proof import prove
from ..sets.substitution import LATE, LOOKS_PER_S, substitute
from .budget import Option
from .candidates import (
    Weighed,
    context_candidates,
    cover_candidates,
    seqs_candidates,
    size_candidates,
    spaced_sizes,
)
from .settings import PlanSettings
from .smoothing import smoothed_decode, smoothed_prefill

Axes = tuple[Ints, Ints]
"""Numbers of requests, and contexts."""
MAX_COVERING = 12
"""Prefill sizes for covering, where there are few candidates; more would save little."""
MAX_COVERING_OF_MANY = 8
"""The same where there are many, and the search for more takes longer than two seconds."""
FEW_SIZES = 256


@dataclass(frozen=True, slots=True)
class Improved:
    """A decode set after the search.

    Attributes:
        option: the set.
        gap: by how much it may at most be above the best of all sets of as many graphs, its fees
            counted, as a share of the best; None where that is not known.
        is_cut_short: whether a clock ended the search or the proof.
    """

    option: Option
    gap: float | None
    is_cut_short: bool = False


@dataclass(frozen=True, slots=True)
class Chooser:
    """Finds sets of graphs.

    Attributes:
        limits: of the engine.
        costs: of steps.
        settings: what may be chosen.
        fee: seconds, of the traffic's, that having a graph is worth.
    """

    limits: PlanLimits
    costs: StepCosts
    settings: PlanSettings
    fee: Callable[[Bucket], float]

    def padded(self, demand: PrefillDemand) -> tuple[Option, ...]:
        """Return the best prefill sets where each step runs in the smallest that holds it.

        After them come those of spacing rules, as for the other phases.
        """
        sizes = size_candidates(self.limits, self.settings)
        seen = self._seen(demand, sizes)
        found = best_sizes(
            seen,
            sizes,
            self.prefill_s(sizes),
            max_num=self.settings.max_num_graphs,
            must_have=self.settings.must_have,
            max_ratio=self.settings.max_ratio,
            fees=np.array([self.fee(self._prefill(int(size))) for size in sizes]),
        )
        chosen = [Option(self._buckets(one.sizes), one.cost) for one in found]
        return (*chosen, *self._spaced_prefill("fill", lambda rule: self._padded_s(seen, rule)))

    def covering(self, demand: PrefillDemand) -> tuple[Option, ...]:
        """Return good prefill sets where the waiting rows are covered by several chunks."""
        sizes, must_have = cover_candidates(self.limits, self.settings), self.settings.must_have
        most = MAX_COVERING if len(sizes) <= FEW_SIZES else MAX_COVERING_OF_MANY
        seen = self._seen(demand, sizes)
        found = best_covering_sizes(
            seen,
            sizes,
            self.costs,
            max_num=max(len(must_have), min(self.settings.max_num_graphs, most)),
            must_have=must_have,
            prefix=self.settings.prefix,
            context_len=self.limits.max_model_len,
        )
        chosen = [Option(self._buckets(one.sizes), one.cost, "cover") for one in found]
        return (*chosen, *self._spaced_prefill("cover", lambda rule: self._covering_s(seen, rule)))

    def decode(self, demand: DecodeDemand) -> tuple[Option, ...]:
        """Return the best decode sets that the backend can dispatch to."""
        axes = self.axes(demand)
        seen = smoothed_decode(demand, *axes, self.settings.unseen_share)
        found = self._decode_sets(seen, axes)
        chosen = [Option(self._decode_buckets(one.buckets), one.cost) for one in found]
        contexts = [self.limits.max_model_len]

        def seconds(sizes: Sequence[int]) -> float:
            return floor_cost(seen, self.costs, num_seqs=sizes, contexts=contexts)

        return (*chosen, *self._spaced_decode(seconds))

    def improved(self, option: Option, demand: DecodeDemand) -> Improved:
        """Return a decode set of as many graphs that is not worse."""
        if self.settings.decode_shape != "ragged":
            is_best = self.settings.decode_shape == "list" and option.rule is None
            return Improved(option, 0.0 if is_best else None)
        pairs = tuple((one.size, one.context_len) for one in option.buckets)
        axes = self.axes(demand, pairs)
        seen = smoothed_decode(demand, *axes, self.settings.unseen_share)
        found = substitute(
            DecodeSet(pairs, option.seconds, None, "ragged"),
            seen,
            self.costs,
            num_seqs=axes[0],
            contexts=axes[1],
            fees=self._decode_fees(axes),
            max_looks=self.settings.search_s * LOOKS_PER_S,
            deadline_s=self.settings.search_s * LATE,
        )
        if self.settings.prove_s:
            found = prove(
                found,
                seen,
                self.costs,
                num_seqs=axes[0],
                contexts=axes[1],
                fees=self._decode_fees(axes),
                max_s=self.settings.prove_s,
            )
        gap = max(0.0, found.total / found.bound - 1) if found.bound else None
        rule = option.rule if set(found.buckets) == set(pairs) else None
        better = Option(self._decode_buckets(found.buckets), found.cost, rule=rule)
        return Improved(better, gap, found.is_cut_short)

    def unknown_decode(self) -> tuple[Option, ...]:
        """Return sets for traffic whose decode steps nobody knows, the finest first.

        These are powers of two of requests, then every second of them and so on.
        """
        sizes = powers_of_two(1, self.limits.max_num_seqs)
        context = self.limits.max_model_len
        return tuple(
            Option(tuple(self._decode(size, context) for size in sizes[::-1][::step][::-1]), 0.0)
            for step in range(1, len(sizes) + 1)
        )

    def unknown_rules(self) -> tuple[Option, ...]:
        """Return the sets of spacing rules for such traffic."""
        return tuple(self._spaced_decode(lambda sizes: 0.0))

    def prefill_s(self, sizes: Ints) -> Floats:
        """Return the seconds of a step of each size, which starts a prompt."""
        room = [self.limits.max_model_len]
        prefix = charged_prefix(np.zeros(len(sizes)), self.settings.prefix, room)
        return self.costs.prefill_s(sizes, np.minimum(prefix, np.maximum(0, room[0] - sizes)))

    def weighed(self, policy: PolicyName, demand: DecodeDemand) -> Weighed:
        """Return how many graphs sets are chosen from."""
        sizes = size_candidates if policy == "fill" else cover_candidates
        num_seqs, contexts = self.axes(demand)
        num_contexts = 1 if self.settings.decode_shape == "list" else len(contexts)
        num_decode = len(num_seqs) * num_contexts if len(demand.weights) else 0
        return Weighed(len(sizes(self.limits, self.settings)), num_decode)

    def _spaced_prefill(
        self, policy: PolicyName, seconds: Callable[[tuple[int, ...]], float]
    ) -> Iterator[Option]:
        """Yield the sizes of the spacing rules that keep what the settings ask for."""
        limits, settings = self.limits, self.settings
        ratio = settings.max_ratio if settings.max_ratio and policy == "fill" else inf
        for rule, sizes in spaced_sizes(TOKENS, limits.max_prefill_tokens).items():
            if (
                set(settings.must_have) <= set(sizes)
                and all(size % limits.prefill_tile == 0 for size in sizes[:-1])
                and all(after <= ratio * before for before, after in pairwise(sizes))
            ):
                yield Option(self._buckets(sizes), seconds(sizes), policy, rule)

    def _spaced_decode(self, seconds: Callable[[tuple[int, ...]], float]) -> Iterator[Option]:
        """Yield the requests of the spacing rules, all with the largest context."""
        context = self.limits.max_model_len
        for rule, sizes in spaced_sizes(SEQS, self.limits.max_num_seqs).items():
            buckets = self._decode_buckets([(size, context) for size in sizes])
            yield Option(buckets, seconds(sizes), rule=rule)

    def _padded_s(self, seen: PrefillDemand, sizes: Sequence[int]) -> float:
        return padded_cost(seen, sizes, np.maximum.accumulate(self.prefill_s(np.array(sizes))))

    def _covering_s(self, seen: PrefillDemand, sizes: Sequence[int]) -> float:
        table = cover_table(
            sizes,
            self.costs,
            int(seen.sizes[-1]),
            prefix=self.settings.prefix,
            context_len=self.limits.max_model_len,
        )
        return float(table.seconds[seen.sizes] @ seen.weights)

    def _decode_sets(self, seen: DecodeDemand, axes: Axes) -> tuple[DecodeSet, ...]:
        num_seqs, contexts = axes
        max_num = self.settings.max_num_graphs
        if self.settings.decode_shape == "list":
            return best_list(
                seen,
                self.costs,
                num_seqs=num_seqs,
                context_len=self.limits.max_model_len,
                max_num=max_num,
                fees=self._decode_fees(axes)[:, -1],
            )
        best = best_ragged if self.settings.decode_shape == "ragged" else best_product
        return best(
            seen,
            self.costs,
            num_seqs=num_seqs,
            contexts=contexts,
            max_num=max_num,
            fees=self._decode_fees(axes),
        )

    def axes(self, demand: DecodeDemand, pairs: Sequence[tuple[int, int]] = ()) -> Axes:
        """Return the candidates of both axes, those of given graphs among them.

        The largest context alone, where none makes a step shorter.
        """
        given = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        num_seqs = np.union1d(seqs_candidates(self.limits, demand), given[:, 0])
        contexts = np.union1d(context_candidates(self.limits, demand), given[:, 1])
        seconds = self.costs.decode_s(num_seqs[:, None], contexts)
        is_shorter = (seconds < seconds[:, -1:]).any()
        return num_seqs, contexts if is_shorter else contexts[-1:]

    def _decode_fees(self, axes: Axes) -> Floats:
        rows, columns = (axis.tolist() for axis in axes)
        graphs = [[self._decode(row, column) for column in columns] for row in rows]
        return np.array([[self.fee(graph) for graph in row] for row in graphs])

    def _seen(self, demand: PrefillDemand, sizes: Ints) -> PrefillDemand:
        return smoothed_prefill(demand, sizes, self.settings.unseen_share)

    def _buckets(self, sizes: Sequence[int]) -> tuple[Bucket, ...]:
        return tuple(map(self._prefill, sizes))

    def _prefill(self, size: int) -> PrefillBucket:
        return PrefillBucket(size, self.limits.max_model_len)

    def _decode_buckets(self, pairs: Sequence[tuple[int, int]]) -> tuple[Bucket, ...]:
        return tuple(self._decode(*pair) for pair in pairs)

    def _decode(self, num_seqs: int, context_len: int) -> DecodeBucket:
        return DecodeBucket(num_seqs, context_len, self.limits.query_len)
