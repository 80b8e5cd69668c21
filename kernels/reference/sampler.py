"""Token choice in plain torch, in fp64. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import check_tensor


def greedy(logits_RV: Tensor) -> Tensor:
    """Return the lowest id of the largest logit per row, int32 ``[R]``."""
    return logits_RV.argmax(dim=1).to(torch.int32)


def sample(
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    uniform_R: Tensor,
) -> Tensor:
    """Draw one id per row, int32 ``[R]``; temperature 0 takes the greedy one.

    The filters and the walk are those of ``KernelSet.sample``. A top_p of 1 or more keeps every
    token, whatever its mass rounds to. A row with NaN gives some valid id and harms no other.
    """
    num_rows = logits_RV.shape[0]
    for name, values in (
        ("temperature", temperature_R),
        ("top_k", top_k_R),
        ("top_p", top_p_R),
        ("uniform", uniform_R),
    ):
        check_tensor(name, values, (num_rows,))
    mass_RV = kept_mass(logits_RV, temperature_R, top_k_R, top_p_R)
    cumulated_RV = mass_RV.cumsum(dim=1)
    goal_R1 = uniform_R.double()[:, None] * cumulated_RV[:, -1:]
    drawn_R = (cumulated_RV > goal_R1).to(torch.int8).argmax(dim=1).to(torch.int32)
    return torch.where(temperature_R == 0, greedy(logits_RV), drawn_R)


def kept_mass(logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor) -> Tensor:
    """Return the weight of each token, not normalised, and 0 where a filter drops it: fp64.

    The largest logit of a row weighs 1.
    """
    vocab_size = logits_RV.shape[1]
    sorted_RV, order_RV = logits_RV.double().sort(dim=1, descending=True, stable=True)
    top_k_R1 = torch.where(top_k_R > 0, top_k_R, vocab_size)[:, None]
    is_top_k = torch.arange(vocab_size) < top_k_R1
    mass_RV = torch.where(is_top_k, _weights(sorted_RV, temperature_R), 0)
    cumulated_RV = mass_RV.cumsum(dim=1)
    before_RV = torch.nn.functional.pad(cumulated_RV[:, :-1], (1, 0))
    top_p_R1 = top_p_R.double()[:, None]
    is_top_p = (before_RV < top_p_R1 * cumulated_RV[:, -1:]) | (top_p_R1 >= 1)
    is_top_p[:, 0] = True
    kept_RV = torch.where(is_top_p, mass_RV, 0)
    return torch.zeros_like(kept_RV).scatter(1, order_RV, kept_RV)


def _weights(sorted_RV: Tensor, temperature_R: Tensor) -> Tensor:
    """Return ``exp((logit - largest) / temperature)`` for rows in descending order."""
    largest_R1 = sorted_RV[:, :1]
    # The largest one may be infinite, and infinity minus itself is not a number.
    below_RV = torch.where(sorted_RV == largest_R1, 0, sorted_RV - largest_R1)
    temperature_R1 = torch.where(temperature_R == 0, 1, temperature_R).double()[:, None]
    return (below_RV / temperature_R1).exp()
