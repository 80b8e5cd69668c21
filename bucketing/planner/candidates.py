"""Sizes that graphs are chosen from: a part of all there are, since searching all takes too long.

To sizes that are spaced by a rule come those that the traffic has most use for, and those of the
spacing rules of others: a plan must be able to be as good as these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from ..ladder import SEQS, SPACING, TOKENS, Axis
from ..padding import round_up
from ..plan import PlanLimits
from ..sets.demand import DecodeDemand, Floats, Ints
from ..sets.prefill import candidate_sizes
from .settings import PlanSettings

DENSE_SEQS = (1, 2, 3, 4, 6)
MAX_CONTEXTS = 64
"""Contexts that decode graphs are chosen from: finer ones gain little and cost the search much."""
MAX_ROWS = 40
"""Numbers of requests up to which those of the traffic are added, and at least ``MIN_DEMANDED``."""
MIN_DEMANDED = 4
MAX_DEMANDED = 16
MAX_SPACED = 32
"""Sizes of a spacing rule that are candidates; a rule with more is weighed as a whole only."""
MAX_SIZES = 8192
"""Prefill sizes up to which all multiples are candidates."""
FINE_SIZES = 1024
"""Smallest multiples, which all are candidates where there are more than that."""
MAX_COVER_UNITS = 1024
"""Units of the largest size for covering, whose search takes as many steps."""


def seqs_candidates(limits: PlanLimits, demand: DecodeDemand | None = None) -> Ints:
    """Return the numbers of requests that decode graphs are chosen from, up to the limit.

    All of few requests, then as CUDA graphs are commonly captured: multiples of 8, from 256 on
    of 16. Given a demand, also those of spacing rules and those that most rows of it would be
    padded from.

    >>> limits = PlanLimits(512, 20, 512, 8, 16)
    >>> seqs_candidates(limits).tolist()
    [1, 2, 3, 4, 6, 8, 16, 20]
    >>> seqs_candidates(limits, DecodeDemand.of([11], [512])).tolist()
    [1, 2, 3, 4, 6, 8, 11, 12, 16, 20]
    """
    limit = limits.max_num_seqs
    sizes = {*DENSE_SEQS, *range(8, min(limit, 256), 8), *range(256, limit, 16)}
    fixed = np.array([*sorted(size for size in sizes if size < limit), limit], dtype=np.int64)
    if demand is None:
        return fixed
    rules = [rule for rule in spaced_sizes(SEQS, limit).values() if len(rule) <= MAX_SPACED]
    fixed = np.union1d(fixed, np.array([size for rule in rules for size in rule], dtype=np.int64))
    num = min(MAX_DEMANDED, max(MIN_DEMANDED, MAX_ROWS - len(fixed)))
    return np.union1d(fixed, _most_padded(demand.num_seqs, demand.weights, fixed, num))


def context_candidates(limits: PlanLimits, demand: DecodeDemand | None = None) -> Ints:
    """Return the contexts that decode graphs are chosen from: multiples of a step of whole blocks.

    Given a demand, also those of it that most would be padded from, to whole blocks. Simulated
    steps have none of these.

    >>> context_candidates(PlanLimits(512, 8, 250, 8, 100)).tolist()
    [100, 200, 250]
    """
    limit, step = limits.max_model_len, context_step(limits)
    fixed = np.array([*range(step, limit, step), limit], dtype=np.int64)
    if demand is None:
        return fixed
    unit = limits.block_size * limits.fold_blocks
    whole = np.minimum(limit, -(-demand.context_lens // unit) * unit)
    return np.union1d(fixed, _most_padded(whole, demand.weights, fixed, MAX_DEMANDED))


def context_step(limits: PlanLimits) -> int:
    """Return the distance of contexts: whole folds of blocks, ``MAX_CONTEXTS`` of them at most."""
    unit = limits.block_size * limits.fold_blocks
    return unit * max(1, -(-limits.max_model_len // (unit * MAX_CONTEXTS)))


def size_candidates(limits: PlanLimits, settings: PlanSettings) -> Ints:
    """Return the prefill sizes that are chosen from: multiples of the granularity, and others.

    Those of spacing rules that kernels can run, must-haves and the limit. Of very many multiples
    the first ``FINE_SIZES`` are candidates; with each doubling from there on the distance doubles.

    >>> size_candidates(PlanLimits(512, 8, 512, 8, 16), PlanSettings(granularity=100)).tolist()
    [100, 128, 200, 256, 300, 384, 400, 500, 512]
    """
    limit, unit = limits.max_prefill_tokens, _unit(limits, settings)
    sizes = candidate_sizes(limit, unit, settings.must_have)
    if len(sizes) > MAX_SIZES:
        coarse = 1 << np.frexp(sizes / (unit * FINE_SIZES))[1].clip(0)
        is_kept = sizes % (unit * coarse) == 0
        sizes = sizes[is_kept | np.isin(sizes, [*settings.must_have, limit])]
    spaced = [size for rule in spaced_sizes(TOKENS, limit).values() for size in rule]
    fitting = [size for size in spaced if size == limit or size % limits.prefill_tile == 0]
    return np.union1d(sizes, np.array(fitting, dtype=np.int64))


def cover_candidates(limits: PlanLimits, settings: PlanSettings) -> Ints:
    """Return the prefill sizes for covering: coarser where the limit is very large.

    >>> limits = PlanLimits(1 << 17, 8, 1 << 17, 8, 16)
    >>> cover_candidates(limits, PlanSettings())[:3].tolist()
    [128, 256, 384]
    """
    limit, unit = limits.max_prefill_tokens, _unit(limits, settings)
    coarse = unit * max(1, -(-limit // (unit * MAX_COVER_UNITS)))
    return candidate_sizes(limit, coarse, settings.must_have)


@dataclass(frozen=True, slots=True)
class Weighed:
    """How many graphs a plan was chosen from; what is proved is proved for these.

    Attributes:
        prefill: sizes.
        decode: graphs; 0 where nothing is known of decode steps.
    """

    prefill: int
    decode: int


def spaced_sizes(axis: Axis, limit: int) -> Mapping[str, tuple[int, ...]]:
    """Return the sizes of every spacing rule that does not have more than any plan may."""
    found = {}
    for name, rule in SPACING.items():
        try:
            found[name] = rule(axis, limit)
        except ValueError:
            continue
    return MappingProxyType(found)


def _unit(limits: PlanLimits, settings: PlanSettings) -> int:
    unit = max(settings.granularity, limits.prefill_tile)
    return round_up(unit, limits.prefill_tile)


def _most_padded(sizes: Ints, weights: Floats, candidates: Ints, num: int) -> Ints:
    """Return the ``num`` sizes from which most rows are padded to the next candidate."""
    distinct, index = np.unique(sizes, return_inverse=True)
    total = np.bincount(index.reshape(-1), weights)
    padding = total * (candidates[np.searchsorted(candidates, distinct)] - distinct)
    heaviest = np.argsort(-padding, kind="stable")[:num]
    return distinct[heaviest[padding[heaviest] > 0]]
