"""The cos/sin table that rope kernels read."""

from __future__ import annotations

import torch
from torch import Tensor

from .architecture import Architecture, inverse_frequencies


def rope_table(architecture: Architecture, max_len: int, *, dtype: torch.dtype) -> Tensor:
    """Return ``[max_len, D]``: D/2 cosines, then D/2 sines of each position.

    Angles are computed in float64 and rounded once, to ``dtype``.
    """
    frequencies = torch.tensor(inverse_frequencies(architecture), dtype=torch.float64)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), frequencies)
    return torch.cat([angles.cos(), angles.sin()], dim=1).to(dtype)
