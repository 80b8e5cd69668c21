"""Mixture of experts. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..reference.experts import check_experts
from ..reference.layers import silu_mul


class Experts(nn.Module):
    """Expert MLPs over weights that are gathered per row."""

    gate_up_X2FE: Tensor
    down_XEF: Tensor

    def __init__(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> None:
        """Keep the weights."""
        super().__init__()
        check_experts(gate_up_X2FE, down_XEF, activation)
        self.register_buffer("gate_up_X2FE", gate_up_X2FE.detach())
        self.register_buffer("down_XEF", down_XEF.detach())

    def forward(self, x_RE: Tensor, experts_RA: Tensor, weights_RA: Tensor) -> Tensor:
        """Return ``[R, E]``."""
        index_RA = experts_RA.clamp(min=0)
        gate_up = torch.einsum("re,rafe->raf", x_RE.float(), self.gate_up_X2FE[index_RA].float())
        inner = silu_mul(gate_up.to(x_RE.dtype).flatten(0, 1)).view(*index_RA.shape, -1)
        output = torch.einsum("raf,raef->rae", inner.float(), self.down_XEF[index_RA].float())
        output = torch.where(experts_RA.unsqueeze(2) >= 0, output * weights_RA.unsqueeze(2), 0)
        return output.sum(1).to(x_RE.dtype)
