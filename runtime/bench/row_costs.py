"""What padding alone costs: one unit per row, where no seconds are asked for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ...bucketing.costs.cost import Floats, StepCosts


@dataclass(frozen=True, slots=True)
class RowCosts(StepCosts):
    """A step costs as many units as its graph has rows, whatever their context: no seconds.

    >>> RowCosts().prefill_s([128, 512]).tolist()
    [128.0, 512.0]
    """

    source: str = "rows"
    error_share: float | None = None

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the rows of a prefill step."""
        return _rows(num_tokens, prefix_lens)

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the rows of a decode step."""
        return _rows(num_seqs, context_lens)


def _rows(rows: ArrayLike, others: ArrayLike) -> Floats:
    shape = np.broadcast(np.asarray(rows), np.asarray(others)).shape
    return np.broadcast_to(np.asarray(rows, dtype=np.float64), shape).copy()
