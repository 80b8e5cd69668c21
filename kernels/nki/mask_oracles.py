"""What the masks of attention must be, element by element, in plain numpy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.uint8]


def mask_cache(
    context_lens: NDArray[np.int32], *, num_heads: int, query_len: int, context_size: int
) -> Mask:
    """Return ``[S, num_heads, query_len, context_size]``: 1 where position < context_len.

    Args:
        context_lens: ``[S, 1]`` tokens in the cache before the step.
        num_heads: query heads.
        query_len: tokens generated per request.
        context_size: positions that the block table can hold.
    """
    is_cached = np.arange(context_size) < context_lens.reshape(-1, 1)
    shape = (len(context_lens), num_heads, query_len, context_size)
    return np.broadcast_to(is_cached[:, None, None, :], shape).astype(np.uint8)


def mask_active(num_seqs: int, *, num_heads: int, query_len: int) -> Mask:
    """Return ``[S, num_heads, query_len, query_len]``: token j sees the step's tokens 0 to j.

    All ones, as is sometimes written, is right for a single token only.
    """
    causal = np.tril(np.ones((query_len, query_len), dtype=np.uint8))
    return np.broadcast_to(causal, (num_seqs, num_heads, query_len, query_len)).copy()
