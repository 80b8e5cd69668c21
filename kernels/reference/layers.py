"""Linear, embedding, norm, rope and activation in plain torch.

Arithmetic runs in fp32 for bf16 and fp32 (fp64 for fp64) and is rounded to the dtype of the
activations once, at the end. Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract import check_rotated_dims, check_tensor

GELU_SCALE = math.sqrt(2 / math.pi)
GELU_CUBIC = 0.044715
"""``0.5 * x * (1 + tanh(GELU_SCALE * (x + GELU_CUBIC * x^3)))`` is close to gelu."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype to compute in: fp64 for fp64, else fp32."""
    return dtype if dtype == torch.float64 else torch.float32


class Linear(nn.Module):
    """``x @ weight.T + bias``, computed in the wider of the weight's and the output's dtype.

    ``F.linear`` may round differently at different row counts (it picks another matrix routine),
    so this layer alone is not bit-identical across buckets.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype) -> None:
        """Keep the weight (shared, not copied, where no conversion is needed)."""
        super().__init__()
        if bias_O is not None:
            check_tensor("bias", bias_O, (weight_OI.shape[0],))
        self.out_dtype = out_dtype
        dtype = torch.promote_types(weight_OI.dtype, out_dtype)
        self.register_buffer("weight", weight_OI.to(dtype))
        self.register_buffer("bias", None if bias_O is None else bias_O.to(dtype))

    def forward(self, x_RI: Tensor) -> Tensor:
        """Return ``[R, O]`` in ``out_dtype``."""
        return F.linear(x_RI.to(self.weight.dtype), self.weight, self.bias).to(self.out_dtype)


def embed(ids_R: Tensor, table_VE: Tensor, scale: float = 1.0) -> Tensor:
    """Return the rows ``[R, E]`` of the table, times ``scale`` and rounded once.

    Raises:
        IndexError: an id is negative or past the table.
    """
    rows = F.embedding(ids_R, table_VE)
    return rows if scale == 1.0 else (rows.to(wide(rows.dtype)) * scale).to(rows.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, rounded once."""
    check_tensor("norm weight", weight, (x.shape[-1],))
    # Dense rows: the order of a mean's additions follows from strides.
    wide_x = x.to(wide(x.dtype)).contiguous()
    mean_square = wide_x.square().mean(dim=-1, keepdim=True)
    return (wide_x / (mean_square + eps).sqrt() * weight.to(wide_x.dtype)).to(x.dtype)


def add_rms_norm(
    x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return the norm of ``x + residual``, and that sum; the norm sees the rounded sum."""
    check_tensor("residual", residual_RE, tuple(x_RE.shape), x_RE.dtype)
    total = x_RE + residual_RE
    return rms_norm(total, weight_E, eps), total


def rope(
    q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
) -> tuple[Tensor, Tensor]:
    """Rotate the first half of each head's Y dims against the second, by the row's position.

    Dims from Y on are copied. Positions outside the table are taken as position 0: only padding
    has them, and it must never read past the table.
    """
    num_positions, num_rotated = cos_sin_CY.shape
    check_tensor("positions", positions_R, (q_RHD.shape[0],))
    check_tensor("cos_sin", cos_sin_CY, (num_positions, num_rotated), wide(q_RHD.dtype))
    check_rotated_dims(num_rotated, q_RHD.shape[2])
    in_table = (positions_R >= 0) & (positions_R < num_positions)
    cos_sin_R1Y = cos_sin_CY[torch.where(in_table, positions_R, 0)].unsqueeze(1)
    cos, sin = cos_sin_R1Y.chunk(2, dim=2)
    return _rotate(q_RHD, cos, sin), _rotate(k_RKD, cos, sin)


def _rotate(x_RHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[2]
    rotary, rest = x_RHD[..., : 2 * half], x_RHD[..., 2 * half :]
    first, second = rotary.to(cos.dtype).chunk(2, dim=2)
    rotated = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=2)
    return torch.cat((rotated.to(x_RHD.dtype), rest), dim=2)


def silu_mul(gate_up_R2F: Tensor) -> Tensor:
    """Return ``silu(gate) * up``: ``[R, F]``, rounded once.

    Written with ``exp``, whose result depends on the element alone; ``F.silu`` rounds by the
    strides of its argument and by the place of an element in it.
    """
    gate, up = gate_up_R2F.to(wide(gate_up_R2F.dtype)).chunk(2, dim=1)
    return (gate / (1 + (-gate).exp()) * up).to(gate_up_R2F.dtype)


def gelu_mul(gate_up_R2F: Tensor) -> Tensor:
    """Return ``gelu(gate) * up``: ``[R, F]``, rounded once; gelu is approximated by tanh.

    ``0.5 * (1 + tanh(u))`` is written as ``1 / (1 + exp(-2 * u))``, for the reason that
    ``silu_mul`` gives and because nothing cancels where tanh is near -1.
    """
    gate, up = gate_up_R2F.to(wide(gate_up_R2F.dtype)).chunk(2, dim=1)
    inner = gate * (1 + GELU_CUBIC * gate * gate) * GELU_SCALE
    return (gate / (1 + (-2 * inner).exp()) * up).to(gate_up_R2F.dtype)


def soft_cap(x_RV: Tensor, cap: float) -> Tensor:
    """Return ``cap * tanh(x / cap)``, rounded once."""
    x = x_RV.to(wide(x_RV.dtype))
    return ((x / cap).tanh() * cap).to(x_RV.dtype)


def take_rows(x_RE: Tensor, rows_P: Tensor) -> Tensor:
    """Return the named rows ``[P, E]``.

    Raises:
        IndexError: a row is negative or past the end.
    """
    return x_RE.index_select(0, rows_P)
