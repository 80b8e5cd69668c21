"""Costs for tests of the planner: plain formulas, cheap to check by hand."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from noria.bucketing.costs.cost import Floats, StepCosts


class LaunchAndWork(StepCosts):
    """A launch, then rows, and what rows attend to."""

    source, error_share = "roofline", None

    def __init__(self, launch: float = 20.0) -> None:
        self._launch = launch

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        rows, prefix = (np.asarray(a, dtype=float) for a in (num_tokens, prefix_lens))
        return (self._launch + rows + 0.01 * rows * prefix) * 1e-3

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        rows, contexts = (np.asarray(a, dtype=float) for a in (num_seqs, context_lens))
        return (self._launch + rows + 0.02 * rows * contexts) * 1e-3


class RowsOnly(StepCosts):
    """A second per row, whatever it attends to."""

    source, error_share = "roofline", None

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        return np.asarray(num_tokens) + 0.0 * np.asarray(prefix_lens)

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        return np.asarray(num_seqs) + 0.0 * np.asarray(context_lens)
