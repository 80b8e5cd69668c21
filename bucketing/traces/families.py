"""Synthetic traffic for want of a trace: a few kinds of service, drawn from a seed.

Medians and spreads are round numbers of the order that such services have; nothing is fitted to
the traffic of anybody.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Protocol

import numpy as np

from .oddities import with_oddities
from .trace import Floats, Ints, Trace, TraceError


class Lengths(Protocol):
    """A distribution of lengths in tokens."""

    def draw(self, random: np.random.Generator, num: int) -> Ints:
        """Draw lengths ``[num]``."""
        ...


@dataclass(frozen=True, slots=True)
class Lognormals:
    """A mixture of lognormal distributions.

    Attributes:
        parts: share, median in tokens, and sigma of the logarithm of each; shares sum up to 1.
        limit: what is longer gets this length, as a service's own limit does to it.
    """

    parts: tuple[tuple[float, float, float], ...]
    limit: int

    def draw(self, random: np.random.Generator, num: int) -> Ints:
        """Draw lengths ``[num]``."""
        shares, medians, sigmas = (np.array(column) for column in zip(*self.parts, strict=True))
        part = np.searchsorted(np.cumsum(shares)[:-1], random.random(num), side="right")
        lens = medians[part] * np.exp(sigmas[part] * _normals(random, num))
        whole: Ints = np.clip(np.rint(lens), 1, self.limit).astype(np.int64)
        return whole


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length up to a limit is as likely."""

    limit: int

    def draw(self, random: np.random.Generator, num: int) -> Ints:
        """Draw lengths ``[num]``."""
        below: Ints = np.floor(random.random(num) * self.limit).astype(np.int64)
        return below + 1


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of service.

    Attributes:
        prompts: lengths of prompts.
        outputs: lengths of outputs, which do not depend on the prompts.
        requests_per_s: mean of the Poisson arrivals.
    """

    prompts: Lengths
    outputs: Lengths
    requests_per_s: float


FAMILIES = {
    "chat": Family(
        prompts=Lognormals(((0.7, 300, 1.1), (0.3, 1500, 0.6)), limit=16_000),
        outputs=Lognormals(((0.8, 250, 0.6), (0.2, 40, 0.8)), limit=2_000),
        requests_per_s=5.0,
    ),
    "code": Family(
        prompts=Lognormals(((0.6, 1200, 0.8), (0.4, 3000, 0.5)), limit=8_000),
        outputs=Lognormals(((0.8, 12, 0.7), (0.2, 80, 0.9)), limit=2_000),
        requests_per_s=3.0,
    ),
    "summarization": Family(
        prompts=Lognormals(((1.0, 2500, 0.4),), limit=8_000),
        outputs=Lognormals(((1.0, 150, 0.5),), limit=1_000),
        requests_per_s=1.0,
    ),
    "uniform": Family(prompts=Uniform(4_096), outputs=Uniform(512), requests_per_s=2.0),
}


def draw_trace(name: str, *, num_requests: int = 10_000, seed: int = 0) -> Trace:
    """Draw requests of a family of ``FAMILIES``: the same for the same arguments.

    Raises:
        TraceError: there is no such family, or ``num_requests`` or ``seed`` is impossible.
    """
    if name not in FAMILIES:
        raise TraceError(f"no family of traffic is named {name}; there are {', '.join(FAMILIES)}")
    if num_requests < 1 or seed < 0:
        raise TraceError(f"{num_requests} requests of seed {seed}; must be at least 1 and 0")
    family = FAMILIES[name]
    random = np.random.Generator(np.random.PCG64(seed))
    warning = f"synthetic: drawn from the family {name}, seed {seed}; not the traffic of a service"
    return with_oddities(
        Trace(
            prompt_lens=family.prompts.draw(random, num_requests),
            output_lens=family.outputs.draw(random, num_requests),
            arrivals_s=_arrivals(random, num_requests, family.requests_per_s),
            sha256=_digest(family, num_requests, seed),
            warnings=(warning,),
        )
    )


def _digest(family: Family, num_requests: int, seed: int) -> str:
    parameters = {"family": asdict(family), "num_requests": num_requests, "seed": seed}
    return hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()


def _arrivals(random: np.random.Generator, num: int, rate: float) -> Floats:
    """Draw Poisson arrivals in whole milliseconds, the first at 0."""
    gaps = -np.log1p(-random.random(num)) / rate
    since: Floats = np.cumsum(gaps) - gaps[0]
    return np.round(since, 3)


def _normals(random: np.random.Generator, num: int) -> Floats:
    """Draw by Box and Muller from uniform numbers, the one stream that numpy keeps for a seed."""
    radius = np.sqrt(-2 * np.log1p(-random.random(num)))
    normals: Floats = radius * np.cos(2 * np.pi * random.random(num))
    return normals
