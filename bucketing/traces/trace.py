"""Trace: the requests of a service, as arrays."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Rows = Ints | NDArray[np.bool_] | slice
Values = TypeVar("Values", Ints, Floats)


class TraceError(ValueError):
    """A trace that cannot be read; one line that names the place."""


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """Requests in their order of arrival, N of them.

    Attributes:
        prompt_lens: tokens of each prompt, positive ``[N]``.
        output_lens: tokens that each request generated, positive ``[N]``; None: not recorded.
        arrivals_s: seconds from the first request on, not falling ``[N]``; None: not recorded.
        prefix_lens: of each prompt, tokens that an unbounded prefix cache had already ``[N]``, at
            most ``prompt_lens - 1``; None: not recorded.
        weights: how many requests each row stands for, positive ``[N]``; None is 1 for all.
        sha256: of the text that it was read from, or of what it was drawn from.
        warnings: what is odd about it, in sentences for people.
    """

    prompt_lens: Ints
    output_lens: Ints | None = None
    arrivals_s: Floats | None = None
    prefix_lens: Ints | None = None
    weights: Floats | None = None
    sha256: str = ""
    warnings: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse columns of other lengths or values, which readers must have refused before."""
        num = len(self.prompt_lens)
        columns = (self.output_lens, self.arrivals_s, self.prefix_lens, self.weights)
        if num == 0 or any(column is not None and len(column) != num for column in columns):
            raise ValueError("a trace has at least one request and columns of one length")
        for lens in (self.prompt_lens, self.output_lens, self.weights):
            if lens is not None and not (lens > 0).all():
                raise ValueError("lengths and weights of a trace are positive")
        if self.arrivals_s is not None and (np.diff(self.arrivals_s) < 0).any():
            raise ValueError("arrivals of a trace do not fall")

    @property
    def num_requests(self) -> float:
        """Requests that the rows stand for."""
        return float(len(self.prompt_lens) if self.weights is None else self.weights.sum())


def pick(column: Values | None, rows: Rows) -> Values | None:
    """Return some rows of a column that may be missing."""
    return None if column is None else column[rows]
