"""Layer operators that the reference writes in a way that a static device graph cannot have.

Those that are not here are taken from ``kernels/reference``. Shape letters as in
``kernels/kernel_set.py``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import check_rotated_dims, check_tensor
from ..reference.layers import wide


def rope(
    q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotate as ``reference.layers.rope`` does; positions are looked up by ``index_select``."""
    num_positions, num_rotated = cos_sin_CY.shape
    check_tensor("positions", positions_R, (q_RHD.shape[0],))
    check_tensor("cos_sin", cos_sin_CY, (num_positions, num_rotated), wide(q_RHD.dtype))
    check_rotated_dims(num_rotated, q_RHD.shape[2])
    in_table = (positions_R >= 0) & (positions_R < num_positions)
    rows_R = torch.where(in_table, positions_R, 0)
    cos_sin_R1Y = cos_sin_CY.index_select(0, rows_R).unsqueeze(1)
    half = num_rotated // 2
    cos, sin = cos_sin_R1Y[..., :half], cos_sin_R1Y[..., half:]
    return _rotate(q_RHD, cos, sin), _rotate(k_RKD, cos, sin)


def _rotate(x_RHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[2]
    rotary = x_RHD[..., : 2 * half].to(cos.dtype)
    first, second = rotary[..., :half], rotary[..., half:]
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
    rotated = rotated.to(x_RHD.dtype)
    if 2 * half == x_RHD.shape[2]:  # an empty part has no place in a graph
        return rotated
    return torch.cat((rotated, x_RHD[..., 2 * half :]), dim=2)
