"""Token choice in plain torch, in fp64. Shape letters as in ``kernels/sampler_operators.py``."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..contract import check_tensor


def greedy(logits_RV: Tensor) -> Tensor:
    """Return the lowest id of the largest logit per row, or -1: int32 ``[R]``."""
    ids_R = logits_RV.argmax(dim=1).to(torch.int32)
    return torch.where(_is_usable(logits_RV), ids_R, -1)


def sample(
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    min_p_R: Tensor,
    uniform_R: Tensor,
) -> Tensor:
    """Draw one id per row, or -1: int32 ``[R]``; temperature 0 takes the greedy one.

    The filters and the walk are those of ``SamplerOperators.sample``. A top_p of 1 or more keeps
    every token, whatever its mass rounds to.
    """
    _check_rows(
        logits_RV,
        temperature=temperature_R,
        top_k=top_k_R,
        top_p=top_p_R,
        min_p=min_p_R,
        uniform=uniform_R,
    )
    greedy_R = greedy(logits_RV)
    mass_RV = kept_mass(logits_RV, temperature_R, top_k_R, top_p_R, min_p_R)
    cumulated_RV = mass_RV.cumsum(dim=1)
    goal_R1 = uniform_R.double()[:, None] * cumulated_RV[:, -1:]
    drawn_R = (cumulated_RV > goal_R1).to(torch.int8).argmax(dim=1).to(torch.int32)
    return torch.where((temperature_R == 0) | (greedy_R < 0), greedy_R, drawn_R)


def kept_mass(
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, min_p_R: Tensor
) -> Tensor:
    """Return the weight of each token, not normalised, and 0 where a filter drops it: fp64.

    The largest logit of a row weighs 1.
    """
    vocab_size = logits_RV.shape[1]
    sorted_RV, order_RV = logits_RV.double().sort(dim=1, descending=True, stable=True)
    temperature_R1 = torch.where(temperature_R == 0, 1, temperature_R).double()[:, None]
    mass_RV = (_below_largest(sorted_RV) / temperature_R1).exp()
    top_k_R1 = torch.where(top_k_R > 0, top_k_R, vocab_size)[:, None]
    is_kept = torch.arange(vocab_size) < top_k_R1
    is_kept &= mass_RV >= min_p_R.double()[:, None]
    mass_RV = torch.where(is_kept, mass_RV, 0)
    cumulated_RV = mass_RV.cumsum(dim=1)
    before_RV = torch.nn.functional.pad(cumulated_RV[:, :-1], (1, 0))
    top_p_R1 = top_p_R.double()[:, None]
    is_top_p = (before_RV < top_p_R1 * cumulated_RV[:, -1:]) | (top_p_R1 >= 1)
    is_top_p[:, 0] = True
    kept_RV = torch.where(is_top_p, mass_RV, 0)
    return torch.zeros_like(kept_RV).scatter(1, order_RV, kept_RV)


def penalize(
    logits_RV: Tensor,
    token_ids_RL: Tensor,
    output_counts_RL: Tensor,
    repetition_R: Tensor,
    presence_R: Tensor,
    frequency_R: Tensor,
) -> Tensor:
    """Return logits less the penalties of the listed tokens ``[R, V]``, rounded once."""
    check_tensor("output_counts", output_counts_RL, tuple(token_ids_RL.shape))
    _check_rows(logits_RV, repetition=repetition_R, presence=presence_R, frequency=frequency_R)
    column_RL = _columns(token_ids_RL, logits_RV)
    wide_RV1 = _with_spare_column(logits_RV)
    logit_RL = wide_RV1.gather(1, column_RL)
    repetition_R1 = repetition_R.double()[:, None]
    logit_RL = torch.where(logit_RL > 0, logit_RL / repetition_R1, logit_RL * repetition_R1)
    logit_RL = logit_RL - frequency_R.double()[:, None] * output_counts_RL
    logit_RL = logit_RL - presence_R.double()[:, None] * (output_counts_RL > 0)
    return wide_RV1.scatter(1, column_RL, logit_RL)[:, :-1].to(logits_RV.dtype)


def add_bias(logits_RV: Tensor, bias_ids_RB: Tensor, bias_RB: Tensor) -> Tensor:
    """Return logits plus the bias of the listed ids ``[R, V]``, rounded once."""
    check_tensor("bias", bias_RB, tuple(bias_ids_RB.shape))
    column_RB = _columns(bias_ids_RB, logits_RV)
    biased_RV1 = _with_spare_column(logits_RV).scatter_add(1, column_RB, bias_RB.double())
    return biased_RV1[:, :-1].to(logits_RV.dtype)


def mask_logits(logits_RV: Tensor, bitmask_RM: Tensor) -> Tensor:
    """Return logits, -inf where the bit is 0 ``[R, V]``; what is not a number stays."""
    num_rows, vocab_size = logits_RV.shape
    check_tensor("bitmask", bitmask_RM, (num_rows, -(-vocab_size // 32)), torch.int32)
    bits_RM32 = (bitmask_RM[:, :, None] >> torch.arange(32, dtype=torch.int32)) & 1
    is_allowed = bits_RM32.flatten(1)[:, :vocab_size] != 0
    return torch.where(is_allowed | logits_RV.isnan(), logits_RV, -math.inf)


def top_logprobs(logits_RV: Tensor, ids_R: Tensor, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return fp32 logprobs ``[R, 1+num]``, top ids ``[R, num]``, ranks of the given ids ``[R]``."""
    num_rows, vocab_size = logits_RV.shape
    check_tensor("ids", ids_R, (num_rows,), torch.int32)
    sorted_RV, order_RV = logits_RV.double().sort(dim=1, descending=True, stable=True)
    below_RV = _below_largest(sorted_RV)
    logprobs_RV = below_RV - below_RV.exp().sum(dim=1, keepdim=True).log()
    is_given = order_RV == ids_R[:, None]
    is_found = is_given.any(dim=1) & _is_usable(logits_RV)
    place_R1 = is_given.to(torch.int8).argmax(dim=1, keepdim=True)
    given_R1 = torch.where(is_found[:, None], logprobs_RV.gather(1, place_R1), -math.inf)
    ranks_R = torch.where(is_found, place_R1[:, 0] + 1, 0).to(torch.int32)
    padding = (0, max(0, num - vocab_size))
    is_usable = _is_usable(logits_RV)[:, None]
    top_RN = torch.where(is_usable, logprobs_RV[:, :num], -math.inf)
    top_RN = torch.nn.functional.pad(top_RN, padding, value=-math.inf)
    top_ids_RN = torch.where(is_usable, order_RV[:, :num], -1).to(torch.int32)
    top_ids_RN = torch.nn.functional.pad(top_ids_RN, padding, value=-1)
    return torch.cat([given_R1, top_RN], dim=1).float(), top_ids_RN, ranks_R


def _is_usable(logits_RV: Tensor) -> Tensor:
    """Tell for each row whether it has a largest logit: no NaN, and not only -inf."""
    return ~logits_RV.isnan().any(dim=1) & (logits_RV > -math.inf).any(dim=1)


def _below_largest(sorted_RV: Tensor) -> Tensor:
    """Return ``logit - largest`` for rows in descending order.

    The largest one may be infinite, and infinity minus itself is not a number.
    """
    largest_R1 = sorted_RV[:, :1]
    return torch.where(sorted_RV == largest_R1, 0, sorted_RV - largest_R1)


def _columns(ids_RL: Tensor, logits_RV: Tensor) -> Tensor:
    """Return the ids as columns: the spare last one for those that are skipped."""
    num_rows, vocab_size = logits_RV.shape
    check_tensor("listed ids", ids_RL, (num_rows, ids_RL.shape[1]), torch.int32)
    is_token = (ids_RL >= 0) & (ids_RL < vocab_size)
    return torch.where(is_token, ids_RL, vocab_size).long()


def _with_spare_column(logits_RV: Tensor) -> Tensor:
    return torch.nn.functional.pad(logits_RV.double(), (0, 1))


def _check_rows(logits_RV: Tensor, **values: Tensor) -> None:
    for name, value_R in values.items():
        check_tensor(name, value_R, (logits_RV.shape[0],))
