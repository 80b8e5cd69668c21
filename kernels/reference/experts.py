"""Mixture of experts in plain torch. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..contract import EXPERT_ACTIVATIONS, check_tensor
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
    if not 0 < top_k <= num_experts:
        raise ValueError(f"top_k is {top_k}, expected 1 to {num_experts} experts")
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

    Products are sums by halves, whose bits depend on nothing but their own terms.
    """

    gate_up_X2FE: Tensor
    down_XEF: Tensor

    def __init__(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> None:
        """Keep the weights, shared and not copied.

        Raises:
            ValueError: the weights do not fit together, or the activation is not known.
        """
        super().__init__()
        check_experts(gate_up_X2FE, down_XEF, activation)
        self.register_buffer("gate_up_X2FE", gate_up_X2FE)
        self.register_buffer("down_XEF", down_XEF)

    def forward(self, x_RE: Tensor, experts_RA: Tensor, weights_RA: Tensor) -> Tensor:
        """Return ``[R, E]`` in the dtype of x.

        Raises:
            ValueError: an input does not fit the others, or an expert is not known.
        """
        num_rows, num_ranks = experts_RA.shape
        num_experts, hidden_size, _ = self.down_XEF.shape
        check_tensor("x", x_RE, (num_rows, hidden_size), self.down_XEF.dtype)
        check_tensor("experts", experts_RA, (num_rows, num_ranks), torch.int32)
        check_tensor("weights", weights_RA, (num_rows, num_ranks), wide(x_RE.dtype))
        is_known = (experts_RA >= -1) & (experts_RA < num_experts)
        if not is_known.all():
            raise ValueError(
                f"expert {int(experts_RA[~is_known][0])} is not one of {num_experts}, nor -1"
            )
        total_RE = torch.zeros(x_RE.shape, dtype=wide(x_RE.dtype))
        for rank in range(num_ranks):
            for expert in range(num_experts):
                rows = (experts_RA[:, rank] == expert).nonzero().squeeze(1)
                if len(rows):
                    output = self._mlp(expert, x_RE[rows])
                    total_RE[rows] += weights_RA[rows, rank].unsqueeze(1) * output
        return total_RE.to(x_RE.dtype)

    def _mlp(self, expert: int, x_RE: Tensor) -> Tensor:
        gate_up = _multiply(x_RE, self.gate_up_X2FE[expert]).to(x_RE.dtype)
        return _multiply(silu_mul(gate_up), self.down_XEF[expert])


def _multiply(x_RI: Tensor, weight_OI: Tensor) -> Tensor:
    """Return ``x @ weight.T`` in the wide dtype, each row alone."""
    dtype = wide(x_RI.dtype)
    weight_OI = weight_OI.to(dtype)
    return torch.stack([tree_sum(row * weight_OI, dim=1) for row in x_RI.to(dtype)])


def check_experts(gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> None:
    """Raise ValueError unless these are the weights of expert MLPs with a known activation."""
    num_experts, hidden_size, inner_size = down_XEF.shape
    shape = (num_experts, 2 * inner_size, hidden_size)
    check_tensor("gate_up", gate_up_X2FE, shape, down_XEF.dtype)
    if activation not in EXPERT_ACTIVATIONS:
        known = ", ".join(EXPERT_ACTIVATIONS)
        raise ValueError(f"experts have the activation {activation!r}, expected {known}")
