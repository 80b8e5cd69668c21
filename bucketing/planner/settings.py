"""What a planner may do: the choices that are not traffic, costs or a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ..costs.reads import Prefix
from ..plan import PlanLimits
from ..sets.demand import Ints
from .smoothing import DEFAULT_SHARE

Policy = Literal["auto", "fill", "cover"]
DecodeShape = Literal["ragged", "product", "list"]

DENSE_SEQS = (1, 2, 3, 4, 6)
MAX_CONTEXTS = 64
"""Contexts that decode graphs are chosen from: finer ones gain little and cost the search much."""


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Attributes:
    policy: how prompts fill a step; ``auto`` takes what serves the traffic sooner.
    prefix: what prefill steps pay for the cached tokens that they attend to.
    decode_shape: which sets of decode graphs the backend can dispatch to.
    granularity: prefill sizes are multiples of it, the limit aside.
    must_have: prefill sizes that every plan has.
    max_ratio: most that neighbouring prefill sizes may differ by; None: any.
    unseen_share: share of the steps that is taken to be of any shape, see ``smoothing``.
    max_num_graphs: most graphs of a phase that are looked at.
    search_s: seconds that the search for a better decode set takes on a usual machine: a count of
        its work ends it, so that its result is the same everywhere; a clock only after twice the
        time.
    prove_s: seconds that a proof of it by integer programming may take, which needs scipy; 0: none.
    """

    policy: Policy = "auto"
    prefix: Prefix = "exact"
    decode_shape: DecodeShape = "ragged"
    granularity: int = 16
    must_have: tuple[int, ...] = ()
    max_ratio: float | None = 2.5
    unseen_share: float = DEFAULT_SHARE
    max_num_graphs: int = 24
    search_s: float = 4.0
    prove_s: float = 0.0


def seqs_candidates(limits: PlanLimits) -> Ints:
    """Return the numbers of requests that decode graphs are chosen from, up to the limit.

    All of few requests, then as CUDA graphs are commonly captured: multiples of 8, from 256 on
    of 16.

    >>> seqs_candidates(PlanLimits(512, 20, 512, 8, 16)).tolist()
    [1, 2, 3, 4, 6, 8, 16, 20]
    """
    limit = limits.max_num_seqs
    sizes = {*DENSE_SEQS, *range(8, min(limit, 256), 8), *range(256, limit, 16)}
    return np.array([*sorted(size for size in sizes if size < limit), limit], dtype=np.int64)


def context_candidates(limits: PlanLimits) -> Ints:
    """Return the contexts that decode graphs are chosen from: multiples of a step of whole blocks.

    >>> context_candidates(PlanLimits(512, 8, 250, 8, 100)).tolist()
    [100, 200, 250]
    """
    limit, step = limits.max_model_len, context_step(limits)
    return np.array([*range(step, limit, step), limit], dtype=np.int64)


def context_step(limits: PlanLimits) -> int:
    """Return the distance of contexts: whole folds of blocks, ``MAX_CONTEXTS`` of them at most."""
    unit = limits.block_size * limits.fold_blocks
    return unit * max(1, -(-limits.max_model_len // (unit * MAX_CONTEXTS)))
