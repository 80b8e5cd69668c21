"""Mixture of experts in plain torch. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..contract import check_expert_weights, check_tensor, check_top_k
from .attention import tree_sum
from .layers import silu_mul, wide


def route(
    logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Return the ``top_k`` experts of each row, and their weights: int32 and fp32 (or fp64).

    Raises:
        ValueError: the mask has another shape, or there are fewer experts than ``top_k``.
    """
    num_rows, num_experts = logits_RX.shape
    check_tensor("token_mask", token_mask_R, (num_rows,), torch.int32)
    check_top_k(top_k, num_experts)
    logits = logits_RX.to(wide(logits_RX.dtype))
    ranked = torch.where(logits.isnan(), -torch.inf, logits)
    experts_RA = ranked.sort(dim=1, descending=True, stable=True).indices[:, :top_k]
    mass = (logits - logits.amax(dim=1, keepdim=True)).exp()
    weights_RA = mass.gather(1, experts_RA)
    total = tree_sum(weights_RA if normalize else mass, dim=1)
    is_token = (token_mask_R != 0).unsqueeze(1)
    weights_RA = torch.where(is_token, weights_RA / total.unsqueeze(1), 0)
    return torch.where(is_token, experts_RA, -1).to(torch.int32), weights_RA


class Experts(nn.Module):
    """Expert MLPs; a row is multiplied with the weights of its own experts only.

    Treats every row alone, to the bit, if the linear layers that it is made of do.
    """

    def __init__(
        self,
        gate_up_X2FE: Tensor,
        down_XEF: Tensor,
        activation: str,
        make_linear: Callable[[Tensor, None, torch.dtype], nn.Module],
    ) -> None:
        """Make two linear layers per expert; the second keeps the wide dtype.

        Raises:
            ValueError: the weights do not fit together, or the activation is not known.
        """
        super().__init__()
        check_expert_weights(gate_up_X2FE, down_XEF, activation)
        self.hidden_size, self.dtype = down_XEF.shape[1], down_XEF.dtype
        self.gate_up = nn.ModuleList(
            make_linear(weight, None, self.dtype) for weight in gate_up_X2FE
        )
        self.down = nn.ModuleList(
            make_linear(weight, None, wide(self.dtype)) for weight in down_XEF
        )

    def forward(self, x_RE: Tensor, experts_RA: Tensor, weights_RA: Tensor) -> Tensor:
        """Return ``[R, E]`` in the dtype of x.

        Raises:
            ValueError: an input does not fit the others, or an expert is not known.
        """
        num_rows, num_ranks = experts_RA.shape
        check_tensor("x", x_RE, (num_rows, self.hidden_size), self.dtype)
        check_tensor("experts", experts_RA, (num_rows, num_ranks), torch.int32)
        check_tensor("expert weights", weights_RA, (num_rows, num_ranks), wide(x_RE.dtype))
        is_known = (experts_RA >= -1) & (experts_RA < len(self.down))
        if not is_known.all():
            raise ValueError(
                f"expert {int(experts_RA[~is_known][0])} is not one of {len(self.down)}, nor -1"
            )
        total_RE = torch.zeros(x_RE.shape, dtype=wide(x_RE.dtype))
        for rank in range(num_ranks):
            for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
                rows = (experts_RA[:, rank] == expert).nonzero().squeeze(1)
                if len(rows):
                    output = down(silu_mul(gate_up(x_RE[rows])))
                    total_RE[rows] += weights_RA[rows, rank].unsqueeze(1) * output
        return total_RE.to(x_RE.dtype)


class RowLinear(nn.Module):
    """``x @ weight.T`` as sums by halves: a row's bits depend on nothing but the row."""

    weight: Tensor

    def __init__(self, weight_OI: Tensor, bias_O: None, out_dtype: torch.dtype) -> None:
        """Keep the weight (shared, not copied)."""
        super().__init__()
        self.out_dtype = out_dtype
        self.register_buffer("weight", weight_OI)

    def forward(self, x_RI: Tensor) -> Tensor:
        """Return ``[R, O]`` in ``out_dtype``."""
        dtype = wide(x_RI.dtype)
        weight_OI = self.weight.to(dtype)
        rows = [tree_sum(row * weight_OI, dim=1) for row in x_RI.to(dtype)]
        return torch.stack(rows).to(self.out_dtype)
