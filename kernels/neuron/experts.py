"""Mixture of experts as one static graph. Shape letters as in ``kernels/kernel_set.py``.

Every expert runs on every row and what it was not chosen for is selected away: which rows an
expert has is known only on the device, and shapes must not depend on it. That is X / A times the
arithmetic that the chosen experts need.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..contract import check_expert_weights, check_tensor, check_top_k
from ..reference.layers import silu_mul, wide


def route(
    logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
) -> tuple[Tensor, Tensor]:
    """Return the ``top_k`` experts of each row and their weights, found one rank at a time.

    Raises:
        ValueError: the mask has another shape, or there are fewer experts than ``top_k``.
    """
    num_rows, num_experts = logits_RX.shape
    check_tensor("token_mask", token_mask_R, (num_rows,), torch.int32)
    check_top_k(top_k, num_experts)
    logits = logits_RX.to(wide(logits_RX.dtype))
    ids_X = torch.arange(num_experts, dtype=torch.int32, device=logits.device)
    ranked = torch.where(logits != logits, -torch.inf, logits)
    is_left = torch.ones_like(ranked) > 0
    mass = (logits - logits.amax(dim=1, keepdim=True)).exp()
    chosen, weights = [], []
    for _ in range(top_k):
        largest_R1 = torch.where(is_left, ranked, -torch.inf).amax(dim=1, keepdim=True)
        is_largest = is_left & (ranked == largest_R1)
        expert_R1 = torch.where(is_largest, ids_X, num_experts).amin(dim=1, keepdim=True)
        is_chosen = ids_X == expert_R1
        is_left = is_left & ~is_chosen
        chosen.append(expert_R1)
        weights.append(torch.where(is_chosen, mass, 0).sum(dim=1, keepdim=True))
    weights_RA = torch.cat(weights, dim=1)
    total_R1 = (weights_RA if normalize else mass).sum(dim=1, keepdim=True)
    is_token = (token_mask_R != 0).unsqueeze(1)
    weights_RA = torch.where(is_token, weights_RA / total_R1, 0)
    return torch.where(is_token, torch.cat(chosen, dim=1), -1), weights_RA


class Experts(nn.Module):
    """Expert MLPs of which each row takes the results of its own."""

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
        dtype = down_XEF.dtype
        self.gate_up = nn.ModuleList(make_linear(weight, None, dtype) for weight in gate_up_X2FE)
        self.down = nn.ModuleList(make_linear(weight, None, wide(dtype)) for weight in down_XEF)

    def forward(self, x_RE: Tensor, experts_RA: Tensor, weights_RA: Tensor) -> Tensor:
        """Return ``[R, E]`` in the dtype of x.

        Raises:
            ValueError: an input does not fit the others.
        """
        num_rows, num_ranks = experts_RA.shape
        check_tensor("experts", experts_RA, (x_RE.shape[0], num_ranks), torch.int32)
        check_tensor("expert weights", weights_RA, (num_rows, num_ranks), wide(x_RE.dtype))
        zero = torch.zeros_like(x_RE, dtype=wide(x_RE.dtype))
        by_rank = [zero] * num_ranks
        for expert, (gate_up, down) in enumerate(zip(self.gate_up, self.down, strict=True)):
            output_RE = down(silu_mul(gate_up(x_RE)))
            for rank in range(num_ranks):
                is_chosen = experts_RA[:, rank : rank + 1] == expert
                weighted = weights_RA[:, rank : rank + 1] * output_RE
                by_rank[rank] = torch.where(is_chosen, weighted, by_rank[rank])
        total_RE = zero
        for weighted in by_rank:
            total_RE = total_RE + weighted
        return total_RE.to(x_RE.dtype)
