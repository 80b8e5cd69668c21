"""The cos/sin table that rope kernels read."""

from __future__ import annotations

import torch
from torch import Tensor

from .rope_scaling import Rope


def rope_table(rope: Rope, head_dim: int, max_len: int, *, dtype: torch.dtype) -> Tensor:
    """Return ``[max_len, Y]``: Y/2 cosines, then Y/2 sines of each position, Y rotary dims.

    Computed in float64, times the attention factor of the rope, and rounded once, to ``dtype``.
    """
    frequencies = torch.tensor(rope.frequencies(head_dim, max_len), dtype=torch.float64)
    angles = torch.outer(torch.arange(max_len, dtype=torch.float64), frequencies)
    table = torch.cat([angles.cos(), angles.sin()], dim=1) * rope.attention_factor
    return table.to(dtype)
