"""Token choice and what comes before and after it. Shape letters as in ``sampler_operators``."""

from __future__ import annotations

import torch
from torch import Tensor

from ..contract import check_tensor
from .native import Call
from .operators import Operator, TensorSpec, check_contiguous


def _greedy_specs(logits_RV: Tensor) -> tuple[TensorSpec, ...]:
    check_tensor("logits", logits_RV, tuple(logits_RV.shape[:2]), torch.float32)
    check_contiguous(logits=logits_RV)
    return (TensorSpec((logits_RV.shape[0],), torch.int32),)


def _greedy_calls(outs: tuple[Tensor, ...], logits_RV: Tensor) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    return [Call("greedy", num_rows, (logits_RV, outs[0], vocab_size))]


def _sample_specs(
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    min_p_R: Tensor,
    uniform_R: Tensor,
) -> tuple[TensorSpec, ...]:
    specs = _greedy_specs(logits_RV)
    _check_rows(logits_RV, temperature=temperature_R, top_p=top_p_R, min_p=min_p_R)
    check_tensor("top_k", top_k_R, specs[0].shape, torch.int32)
    if uniform_R.dtype != torch.float64:
        check_tensor("uniform", uniform_R, specs[0].shape, torch.float32)
    check_tensor("uniform", uniform_R, specs[0].shape)
    check_contiguous(top_k=top_k_R, uniform=uniform_R)
    return specs


def _sample_calls(
    outs: tuple[Tensor, ...],
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    min_p_R: Tensor,
    uniform_R: Tensor,
) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    is_double = int(uniform_R.dtype == torch.float64)
    args = (logits_RV, outs[0], vocab_size, temperature_R, top_k_R, top_p_R, uniform_R, is_double)
    return [Call("sample", num_rows, (*args, min_p_R))]


def _penalize_specs(
    logits_RV: Tensor,
    token_ids_RL: Tensor,
    output_counts_RL: Tensor,
    repetition_R: Tensor,
    presence_R: Tensor,
    frequency_R: Tensor,
) -> tuple[TensorSpec, ...]:
    specs = _changed_specs(logits_RV)
    shape = (logits_RV.shape[0], token_ids_RL.shape[1])
    check_tensor("token_ids", token_ids_RL, shape, torch.int32)
    check_tensor("output_counts", output_counts_RL, shape, torch.int32)
    check_contiguous(token_ids=token_ids_RL, output_counts=output_counts_RL)
    _check_rows(logits_RV, repetition=repetition_R, presence=presence_R, frequency=frequency_R)
    return specs


def _penalize_calls(
    outs: tuple[Tensor, ...],
    logits_RV: Tensor,
    token_ids_RL: Tensor,
    output_counts_RL: Tensor,
    *penalties: Tensor,
) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    lists = (token_ids_RL, token_ids_RL.shape[1], output_counts_RL)
    return [Call("penalize", num_rows, (logits_RV, outs[0], vocab_size, *lists, *penalties))]


def _bias_specs(logits_RV: Tensor, ids_RB: Tensor, bias_RB: Tensor) -> tuple[TensorSpec, ...]:
    specs = _changed_specs(logits_RV)
    shape = (logits_RV.shape[0], ids_RB.shape[1])
    check_tensor("bias ids", ids_RB, shape, torch.int32)
    check_tensor("bias", bias_RB, shape, torch.float32)
    check_contiguous(ids=ids_RB, bias=bias_RB)
    return specs


def _bias_calls(
    outs: tuple[Tensor, ...], logits_RV: Tensor, ids_RB: Tensor, bias_RB: Tensor
) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    lists = (ids_RB, ids_RB.shape[1], bias_RB)
    return [Call("add_bias", num_rows, (logits_RV, outs[0], vocab_size, *lists))]


def _mask_specs(logits_RV: Tensor, bitmask_RM: Tensor) -> tuple[TensorSpec, ...]:
    num_rows, vocab_size = logits_RV.shape
    check_tensor("bitmask", bitmask_RM, (num_rows, -(-vocab_size // 32)), torch.int32)
    check_contiguous(bitmask=bitmask_RM)
    return _changed_specs(logits_RV)


def _mask_calls(outs: tuple[Tensor, ...], logits_RV: Tensor, bitmask_RM: Tensor) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    return [Call("mask_logits", num_rows, (logits_RV, outs[0], vocab_size, bitmask_RM))]


def _logprobs_specs(logits_RV: Tensor, ids_R: Tensor, num: int) -> tuple[TensorSpec, ...]:
    (spec,) = _greedy_specs(logits_RV)
    check_tensor("ids", ids_R, spec.shape, torch.int32)
    check_contiguous(ids=ids_R)
    (num_rows,) = spec.shape
    values = TensorSpec((num_rows, 1 + num), torch.float32)
    return values, TensorSpec((num_rows, num), torch.int32), spec


def _logprobs_calls(
    outs: tuple[Tensor, ...], logits_RV: Tensor, ids_R: Tensor, num: int
) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    args = (logits_RV, outs[0], vocab_size, ids_R, num, outs[1], outs[2])
    return [Call("top_logprobs", num_rows, args)]


def _changed_specs(logits_RV: Tensor) -> tuple[TensorSpec, ...]:
    _greedy_specs(logits_RV)
    return (TensorSpec(tuple(logits_RV.shape), torch.float32),)


def _check_rows(logits_RV: Tensor, **values: Tensor) -> None:
    for name, value_R in values.items():
        check_tensor(name, value_R, (logits_RV.shape[0],), torch.float32)
    check_contiguous(**values)


OPERATORS = (
    Operator("greedy", "(Tensor logits) -> Tensor", _greedy_specs, _greedy_calls),
    Operator(
        "sample",
        "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
        "Tensor uniform) -> Tensor",
        _sample_specs,
        _sample_calls,
    ),
    Operator(
        "penalize",
        "(Tensor logits, Tensor token_ids, Tensor output_counts, Tensor repetition, "
        "Tensor presence, Tensor frequency) -> Tensor",
        _penalize_specs,
        _penalize_calls,
    ),
    Operator(
        "add_bias", "(Tensor logits, Tensor ids, Tensor bias) -> Tensor", _bias_specs, _bias_calls
    ),
    Operator("mask_logits", "(Tensor logits, Tensor bitmask) -> Tensor", _mask_specs, _mask_calls),
    Operator(
        "top_logprobs",
        "(Tensor logits, Tensor ids, int num) -> (Tensor, Tensor, Tensor)",
        _logprobs_specs,
        _logprobs_calls,
    ),
)
