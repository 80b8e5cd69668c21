"""Demand: how often steps need which shapes. What a set of graphs is chosen for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class PrefillDemand:
    """How many prefill steps need how many rows.

    Attributes:
        sizes: rows, ascending and distinct, positive ``[n]``.
        weights: steps of each size, not negative ``[n]``.

    >>> demand = PrefillDemand.of([300, 20, 300])
    >>> demand.sizes.tolist(), demand.weights.tolist()
    ([20, 300], [1.0, 2.0])
    """

    sizes: Ints
    weights: Floats

    @classmethod
    def of(cls, sizes: ArrayLike, weights: ArrayLike | None = None) -> PrefillDemand:
        """Sum equal sizes up; without ``weights`` each counts once."""
        given = _positive("sizes", sizes)
        distinct, index = np.unique(given, return_inverse=True)
        return cls(distinct, _summed(index, len(distinct), len(given), weights))


@dataclass(frozen=True, slots=True, eq=False)
class DecodeDemand:
    """How many decode steps run how many requests with which longest context.

    Attributes:
        num_seqs: requests ``[m]``.
        context_lens: longest need of a step, see ``decode_context_need`` ``[m]``.
        weights: steps of each pair, not negative ``[m]``.
        live_lens: tokens that a request of these steps has on average ``[m]``.

    Pairs are distinct and in ascending order of (num_seqs, context_len).
    """

    num_seqs: Ints
    context_lens: Ints
    weights: Floats
    live_lens: Floats

    @classmethod
    def of(
        cls,
        num_seqs: ArrayLike,
        context_lens: ArrayLike,
        weights: ArrayLike | None = None,
        live_lens: ArrayLike | None = None,
    ) -> DecodeDemand:
        """Sum equal pairs up.

        Without ``weights`` each counts once; without ``live_lens`` all requests of a step are as
        long as its longest.
        """
        pairs = np.stack([_positive("num_seqs", num_seqs), _positive("context_lens", context_lens)])
        distinct, index = np.unique(pairs, axis=1, return_inverse=True)
        index, num = index.reshape(-1), distinct.shape[1]
        summed = _summed(index, num, pairs.shape[1], weights)
        if live_lens is None:
            return cls(distinct[0], distinct[1], summed, distinct[1].astype(np.float64))
        counts = np.ones(len(index)) if weights is None else np.asarray(weights, dtype=np.float64)
        lens: Floats = np.asarray(live_lens, dtype=np.float64)
        # Pairs without steps keep some length: the weights only have to be above 0.
        counts = np.where(summed[index] > 0, counts, 1.0)
        total = np.bincount(index, weights=counts * lens, minlength=num)
        mean: Floats = total / np.bincount(index, weights=counts, minlength=num)
        return cls(distinct[0], distinct[1], summed, mean)


def _positive(name: str, values: ArrayLike) -> Ints:
    array = np.asarray(values, dtype=np.int64)
    if array.ndim != 1 or not (array > 0).all():
        raise ValueError(f"{name} of a demand must be a list of positive integers")
    return array


def _summed(index: Ints, num: int, num_given: int, weights: ArrayLike | None) -> Floats:
    given = np.ones(num_given) if weights is None else np.asarray(weights, dtype=np.float64)
    if given.shape != (num_given,) or not (given >= 0).all() or not np.isfinite(given).all():
        raise ValueError("weights of a demand must be finite, not negative, and one per step")
    summed: Floats = np.bincount(index, weights=given, minlength=num).astype(np.float64)
    return summed
