"""What a planner may do: the choices that are not traffic, costs or a budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..costs.reads import Prefix
from .smoothing import DEFAULT_SHARE

Policy = Literal["auto", "fill", "cover"]
DecodeShape = Literal["ragged", "product", "list"]

DEFAULT_MIN_SAVING = 0.001


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """Attributes:
    policy: how prompts fill a step; ``auto`` takes what serves the traffic sooner.
    prefix: what prefill steps pay for the cached tokens that they attend to.
    decode_shape: which sets of decode graphs the backend can dispatch to.
    granularity: prefill sizes are multiples of it, the limit aside.
    must_have: prefill sizes that every plan has.
    max_ratio: most that neighbouring prefill sizes may differ by; None: any.
    min_saving: share of the time of the traffic that each graph must save to be had, besides what
        compiling it costs; where a spacing rule would be faster for want of graphs, fewer do.
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
    min_saving: float = DEFAULT_MIN_SAVING
    unseen_share: float = DEFAULT_SHARE
    max_num_graphs: int = 24
    search_s: float = 4.0
    prove_s: float = 0.0
