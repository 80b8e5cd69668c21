"""Token choice for a device: fp32, no 64-bit numbers, no sorted ids, nothing chosen by shape.

Where the reference sorts ids, values alone are sorted here, and ties are told apart by their
running count in the order of ids. Counts are fp32, exact for vocabularies below 2**24. Shape
letters as in ``kernels/sampler_operators.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import check_tensor


@dataclass(frozen=True, slots=True)
class Rows:
    """Logits as fp32 with -inf for what is not a number, and what is known of each row.

    ``ids_V`` are all ids; ``below_RV`` is ``logit - largest``, 0 for the largest, which may be
    infinite; ``is_usable_R1`` tells whether ``greedy`` gives an id.
    """

    logits_RV: Tensor
    ids_V: Tensor
    below_RV: Tensor
    is_usable_R1: Tensor

    @classmethod
    def of(cls, logits_RV: Tensor) -> Rows:
        """Look at the logits."""
        wide_RV = logits_RV.float()
        is_number_RV = wide_RV == wide_RV
        clean_RV = torch.where(is_number_RV, wide_RV, -math.inf)
        largest_R1 = clean_RV.amax(dim=1, keepdim=True)
        below_RV = torch.where(clean_RV == largest_R1, 0, clean_RV - largest_R1)
        is_usable_R1 = is_number_RV.all(dim=1, keepdim=True) & (largest_R1 > -math.inf)
        ids_V = torch.arange(logits_RV.shape[1], dtype=torch.int32, device=logits_RV.device)
        return cls(clean_RV, ids_V, below_RV, is_usable_R1)

    def first_of(self, is_one_RV: Tensor) -> Tensor:
        """Return the lowest id that is one, V where none is: int32 ``[R, 1]``."""
        return torch.where(is_one_RV, self.ids_V, self.ids_V.shape[0]).amin(dim=1, keepdim=True)


def greedy(logits_RV: Tensor) -> Tensor:
    """Return the lowest id of the largest logit per row, or -1: int32 ``[R]``."""
    rows = Rows.of(logits_RV)
    return torch.where(rows.is_usable_R1, rows.first_of(rows.below_RV == 0), -1)[:, 0]


def sample(
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    min_p_R: Tensor,
    uniform_R: Tensor,
) -> Tensor:
    """Draw one id per row, or -1: int32 ``[R]``; temperature 0 takes the greedy one.

    The filters and the walk are those of ``SamplerOperators.sample``.
    """
    values = {"temperature": temperature_R, "top_k": top_k_R, "top_p": top_p_R}
    _check_rows(logits_RV, **values, min_p=min_p_R, uniform=uniform_R)
    rows = Rows.of(logits_RV)
    temperature_R1 = temperature_R[:, None]
    divisor_R1 = torch.where(temperature_R1 == 0, 1, temperature_R1)
    sorted_RV = rows.below_RV.sort(dim=1, descending=True).values
    num_kept_R1 = _num_kept(
        rows, (sorted_RV / divisor_R1).exp(), top_k_R[:, None], top_p_R[:, None], min_p_R[:, None]
    )
    is_kept_RV = _largest(rows, sorted_RV, num_kept_R1)
    mass_RV = torch.where(is_kept_RV, (rows.below_RV / divisor_R1).exp(), 0)
    cumulated_RV = mass_RV.cumsum(dim=1)
    goal_R1 = uniform_R[:, None] * cumulated_RV[:, -1:]
    is_past_RV = is_kept_RV & (cumulated_RV > goal_R1)
    # Rounding may leave the goal at the whole mass, which nothing exceeds: the last one then.
    last_R1 = torch.where(mass_RV > 0, rows.ids_V, 0).amax(dim=1, keepdim=True)
    drawn_R1 = torch.minimum(rows.first_of(is_past_RV), last_R1)
    greedy_R1 = rows.first_of(rows.below_RV == 0)
    chosen_R1 = torch.where(temperature_R1 == 0, greedy_R1, drawn_R1)
    return torch.where(rows.is_usable_R1, chosen_R1, -1)[:, 0]


def _num_kept(
    rows: Rows, mass_RV: Tensor, top_k_R1: Tensor, top_p_R1: Tensor, min_p_R1: Tensor
) -> Tensor:
    """Return how many of the largest tokens the filters keep, given masses in falling order."""
    vocab_size = mass_RV.shape[1]
    top_k_R1 = torch.where(top_k_R1 > 0, top_k_R1, vocab_size)
    is_kept_RV = (rows.ids_V < top_k_R1) & (mass_RV >= min_p_R1)
    mass_RV = torch.where(is_kept_RV, mass_RV, 0)
    cumulated_RV = mass_RV.cumsum(dim=1)
    before_RV = torch.nn.functional.pad(cumulated_RV[:, :-1], (1, 0))
    is_top_p_RV = (before_RV < top_p_R1 * cumulated_RV[:, -1:]) | (top_p_R1 >= 1)
    is_kept_RV = is_kept_RV & (is_top_p_RV | (rows.ids_V == 0))
    return _count(is_kept_RV)


def _largest(rows: Rows, sorted_RV: Tensor, num_R1: Tensor) -> Tensor:
    """Tell which tokens are the ``num`` largest of their row; of equal ones, the lowest ids."""
    is_last_RV = rows.ids_V.float() == num_R1 - 1
    least_R1 = torch.where(is_last_RV, sorted_RV, -math.inf).amax(dim=1, keepdim=True)
    is_above_RV = rows.below_RV > least_R1
    is_equal_RV = rows.below_RV == least_R1
    num_equal_R1 = num_R1 - _count(is_above_RV)
    place_RV = is_equal_RV.float().cumsum(dim=1)
    return is_above_RV | (is_equal_RV & (place_RV <= num_equal_R1))


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
    wide_RV1, at = _listed(logits_RV, token_ids_RL)
    logit_RL = wide_RV1[at]
    repetition_R1 = repetition_R[:, None]
    logit_RL = torch.where(logit_RL > 0, logit_RL / repetition_R1, logit_RL * repetition_R1)
    logit_RL = logit_RL - frequency_R[:, None] * output_counts_RL
    logit_RL = logit_RL - torch.where(output_counts_RL > 0, presence_R[:, None], 0)
    return wide_RV1.index_put(at, logit_RL)[:, :-1].to(logits_RV.dtype)


def add_bias(logits_RV: Tensor, bias_ids_RB: Tensor, bias_RB: Tensor) -> Tensor:
    """Return logits plus the bias of the listed ids ``[R, V]``, rounded once."""
    check_tensor("bias", bias_RB, tuple(bias_ids_RB.shape))
    wide_RV1, at = _listed(logits_RV, bias_ids_RB)
    return wide_RV1.index_put(at, wide_RV1[at] + bias_RB)[:, :-1].to(logits_RV.dtype)


def mask_logits(logits_RV: Tensor, bitmask_RM: Tensor) -> Tensor:
    """Return logits, -inf where the bit is 0 ``[R, V]``; what is not a number stays."""
    num_rows, vocab_size = logits_RV.shape
    check_tensor("bitmask", bitmask_RM, (num_rows, -(-vocab_size // 32)), torch.int32)
    places_32 = torch.arange(32, dtype=torch.int32, device=logits_RV.device)
    bits_RM32 = (bitmask_RM[:, :, None] >> places_32) & 1
    is_allowed_RV = bits_RM32.flatten(1)[:, :vocab_size] != 0
    return torch.where(is_allowed_RV | (logits_RV != logits_RV), logits_RV, -math.inf)


def top_logprobs(logits_RV: Tensor, ids_R: Tensor, num: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return fp32 logprobs ``[R, 1+num]``, top ids ``[R, num]``, ranks of the given ids ``[R]``."""
    check_tensor("ids", ids_R, (logits_RV.shape[0],), torch.int32)
    rows, ids_R1 = Rows.of(logits_RV), ids_R[:, None]
    log_sum_R1 = rows.below_RV.exp().sum(dim=1, keepdim=True).log()
    is_given_RV = rows.ids_V == ids_R1
    given_R1 = torch.where(is_given_RV, rows.below_RV, -math.inf).amax(dim=1, keepdim=True)
    is_equal_RV = (rows.below_RV == given_R1) & (rows.ids_V < ids_R1)
    rank_R1 = 1 + _count((rows.below_RV > given_R1) | is_equal_RV)
    is_found_R1 = is_given_RV.any(dim=1, keepdim=True) & rows.is_usable_R1
    rank_R1 = torch.where(is_found_R1, rank_R1, 0).to(torch.int32)
    logprobs = [torch.where(is_found_R1, given_R1 - log_sum_R1, -math.inf)]
    top_ids = []
    for id_R1, below_R1 in _in_order(rows, num):
        logprobs.append(torch.where(rows.is_usable_R1, below_R1 - log_sum_R1, -math.inf))
        top_ids.append(torch.where(rows.is_usable_R1, id_R1, -1))
    top_RN = torch.cat(top_ids, dim=1) if top_ids else rank_R1[:, :0]
    return torch.cat(logprobs, dim=1), top_RN, rank_R1[:, 0]


def _in_order(rows: Rows, num: int) -> list[tuple[Tensor, Tensor]]:
    """Return ids and values of the ``num`` largest, each ``[R, 1]``; past the last -1 and -inf."""
    found = []
    is_left_RV = rows.ids_V.expand(rows.below_RV.shape) >= 0
    for _ in range(min(num, rows.ids_V.shape[0])):
        below_R1 = torch.where(is_left_RV, rows.below_RV, -math.inf).amax(dim=1, keepdim=True)
        id_R1 = rows.first_of(is_left_RV & (rows.below_RV == below_R1))
        is_left_RV = is_left_RV & (rows.ids_V != id_R1)
        found.append((id_R1, below_R1))
    if len(found) < num:
        nothing = (torch.full_like(found[0][0], -1), torch.full_like(found[0][1], -math.inf))
        found += [nothing] * (num - len(found))
    return found


def _count(is_one_RV: Tensor) -> Tensor:
    return is_one_RV.float().sum(dim=1, keepdim=True)


def _listed(logits_RV: Tensor, ids_RL: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return fp32 logits with a spare column, and rows and columns of the listed ids in them.

    The spare column is that of the ids that are skipped.
    """
    num_rows, vocab_size = logits_RV.shape
    check_tensor("listed ids", ids_RL, (num_rows, ids_RL.shape[1]), torch.int32)
    is_token_RL = (ids_RL >= 0) & (ids_RL < vocab_size)
    row_R = torch.arange(num_rows, dtype=torch.int32, device=logits_RV.device)
    columns_RL = torch.where(is_token_RL, ids_RL, vocab_size)
    wide_RV1 = torch.nn.functional.pad(logits_RV.float(), (0, 1))
    return wide_RV1, (row_R[:, None].expand(ids_RL.shape), columns_RL)


def _check_rows(logits_RV: Tensor, **values: Tensor) -> None:
    for name, value_R in values.items():
        check_tensor(name, value_R, (logits_RV.shape[0],))
