"""What a planner asks about graphs: what a step costs, and what it costs to have one."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..buckets import Bucket

Floats = NDArray[np.float64]


class StepCosts(Protocol):
    """Seconds of one step, for arrays of shapes (broadcast against each other).

    Attributes:
        source: ``measured``, ``roofline`` or ``fitted``.
        error_share: mean relative error against what was measured; None where nothing was.
    """

    source: str
    error_share: float | None

    @abstractmethod
    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the seconds of a full prefill step.

        Args:
            num_tokens: rows of the graph.
            prefix_lens: cached tokens that its rows attend to besides each other, as far as the
                kernel reads them: the real ones, or the graph's context where it reads all.
        """
        ...

    @abstractmethod
    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes in a graph, whatever is cached.

        That is all its rows, and of its context what kernels read or compute even where nothing
        is cached. See ``live_s`` for the rest.
        """
        ...

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes besides, in any graph.

        Args:
            num_seqs: its requests.
            context_lens: what they have cached, each on average.
        """
        return np.zeros(np.broadcast(np.asarray(num_seqs), np.asarray(context_lens)).shape)


@dataclass(frozen=True, slots=True)
class GraphFees:
    """What it costs to have a graph, apart from running it.

    Attributes:
        compile_s: seconds of one worker, as a base and per row.
        num_bytes: of device memory or of host memory, as a base and per row.
    """

    base_compile_s: float
    row_compile_s: float
    base_bytes: float
    row_bytes: float

    def compile_s(self, bucket: Bucket) -> float:
        """Return the seconds that one worker takes."""
        return self.base_compile_s + self.row_compile_s * bucket.num_rows

    def num_bytes(self, bucket: Bucket) -> float:
        """Return the bytes that the graph takes while it is loaded."""
        return self.base_bytes + self.row_bytes * bucket.num_rows
