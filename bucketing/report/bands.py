"""Who pays, as numbers: sizes and requests, and the seconds that each takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Band:
    """What falls between two sizes, both included.

    ``own_s``: in graphs of exactly their shape, ``plan_s``: in the plan's, ``default_s``: in those
    of the default; None without one.
    """

    first: int
    last: int
    num: float
    own_s: float
    plan_s: float
    default_s: float | None


@dataclass(frozen=True, slots=True)
class Percentile:
    """A prompt that runs alone: ``percent`` of the requests have no longer one."""

    percent: int
    prompt_len: int
    own_s: float
    plan_s: float
    default_s: float | None


@dataclass(frozen=True, slots=True)
class WastePoint:
    """``percent`` of the requests waste at most this, each alone, as a share of their own time."""

    percent: int
    plan: float
    default: float | None
