"""The sets of graphs that a plan may have for each phase, for every number of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..buckets import Bucket, DecodeBucket, PrefillBucket
from ..costs.cost import StepCosts
from ..costs.reads import charged_prefix
from ..ladder import powers_of_two
from ..plan import PlanLimits
from ..sets.cover_search import best_covering_sizes
from ..sets.decode import DecodeSet, best_list, best_product, best_ragged
from ..sets.demand import DecodeDemand, Floats, Ints, PrefillDemand
from ..sets.prefill import best_sizes, candidate_sizes
from ..sets.proof import prove
from ..sets.substitution import LATE, LOOKS_PER_S, substitute
from .budget import Option
from .settings import PlanSettings, context_candidates, seqs_candidates
from .smoothing import smoothed_decode, smoothed_prefill

MAX_COVERING = 8
"""Prefill sizes for covering: more save little, and the search for them takes long."""


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
        """Return the best prefill sets where each step runs in the smallest that holds it."""
        sizes = self._sizes()
        found = best_sizes(
            self._seen(demand, sizes),
            sizes,
            self.prefill_s(sizes),
            max_num=self.settings.max_num_graphs,
            must_have=self.settings.must_have,
            max_ratio=self.settings.max_ratio,
            fees=np.array([self.fee(self._prefill(int(size))) for size in sizes]),
        )
        return tuple(Option(self._buckets(one.sizes), one.cost) for one in found)

    def covering(self, demand: PrefillDemand) -> tuple[Option, ...]:
        """Return good prefill sets where the waiting rows are covered by several chunks."""
        sizes, must_have = self._sizes(), self.settings.must_have
        found = best_covering_sizes(
            self._seen(demand, sizes),
            sizes,
            self.costs,
            max_num=max(len(must_have), min(self.settings.max_num_graphs, MAX_COVERING)),
            must_have=must_have,
            prefix=self.settings.prefix,
            context_len=self.limits.max_model_len,
        )
        return tuple(Option(self._buckets(one.sizes), one.cost) for one in found)

    def decode(self, demand: DecodeDemand) -> tuple[Option, ...]:
        """Return the best decode sets that the backend can dispatch to."""
        return tuple(
            Option(self._decode_buckets(one), one.cost) for one in self._decode_sets(demand)
        )

    def improved(self, option: Option, demand: DecodeDemand) -> Improved:
        """Return a decode set of as many graphs that is not worse."""
        if self.settings.decode_shape != "ragged":
            return Improved(option, 0.0 if self.settings.decode_shape == "list" else None)
        pairs = tuple((one.size, one.context_len) for one in option.buckets)
        found = substitute(
            DecodeSet(pairs, option.seconds, None, "ragged"),
            self._seen_decode(demand),
            self.costs,
            num_seqs=seqs_candidates(self.limits),
            contexts=self.contexts,
            fees=self._decode_fees(),
            max_looks=self.settings.search_s * LOOKS_PER_S,
            deadline_s=self.settings.search_s * LATE,
        )
        if self.settings.prove_s:
            found = prove(
                found,
                self._seen_decode(demand),
                self.costs,
                num_seqs=seqs_candidates(self.limits),
                contexts=self.contexts,
                fees=self._decode_fees(),
                max_s=self.settings.prove_s,
            )
        gap = max(0.0, found.total / found.bound - 1) if found.bound else None
        return Improved(Option(self._decode_buckets(found), found.cost), gap, found.is_cut_short)

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

    def prefill_s(self, sizes: Ints) -> Floats:
        """Return the seconds of a step of each size, which starts a prompt."""
        room = [self.limits.max_model_len]
        prefix = charged_prefix(np.zeros(len(sizes)), self.settings.prefix, room)
        return self.costs.prefill_s(sizes, np.minimum(prefix, np.maximum(0, room[0] - sizes)))

    def _decode_sets(self, demand: DecodeDemand) -> tuple[DecodeSet, ...]:
        seen, seqs = self._seen_decode(demand), seqs_candidates(self.limits)
        max_num = self.settings.max_num_graphs
        if self.settings.decode_shape == "list":
            return best_list(
                seen,
                self.costs,
                num_seqs=seqs,
                context_len=self.limits.max_model_len,
                max_num=max_num,
                fees=self._decode_fees()[:, -1],
            )
        best = best_ragged if self.settings.decode_shape == "ragged" else best_product
        return best(
            seen,
            self.costs,
            num_seqs=seqs,
            contexts=self.contexts,
            max_num=max_num,
            fees=self._decode_fees(),
        )

    def _decode_fees(self) -> Floats:
        return np.array(
            [
                [self.fee(self._decode(int(row), int(column))) for column in self.contexts]
                for row in seqs_candidates(self.limits)
            ]
        )

    @property
    def contexts(self) -> Ints:
        """The contexts of candidates: the largest alone, where none makes a step shorter."""
        contexts = context_candidates(self.limits)
        seconds = self.costs.decode_s(seqs_candidates(self.limits)[:, None], contexts)
        return contexts if (seconds < seconds[:, -1:]).any() else contexts[-1:]

    def _seen(self, demand: PrefillDemand, sizes: Ints) -> PrefillDemand:
        return smoothed_prefill(demand, sizes, self.settings.unseen_share)

    def _seen_decode(self, demand: DecodeDemand) -> DecodeDemand:
        seqs = seqs_candidates(self.limits)
        return smoothed_decode(demand, seqs, self.contexts, self.settings.unseen_share)

    def _sizes(self) -> Ints:
        unit = max(self.settings.granularity, self.limits.prefill_tile)
        return candidate_sizes(self.limits.max_prefill_tokens, unit, self.settings.must_have)

    def _buckets(self, sizes: tuple[int, ...]) -> tuple[Bucket, ...]:
        return tuple(map(self._prefill, sizes))

    def _prefill(self, size: int) -> PrefillBucket:
        return PrefillBucket(size, self.limits.max_model_len)

    def _decode_buckets(self, found: DecodeSet) -> tuple[Bucket, ...]:
        return tuple(self._decode(*pair) for pair in found.buckets)

    def _decode(self, num_seqs: int, context_len: int) -> DecodeBucket:
        return DecodeBucket(num_seqs, context_len, self.limits.query_len)
