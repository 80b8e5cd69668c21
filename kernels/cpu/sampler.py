"""Token choice. Shape letters as in ``kernels/kernel_set.py``."""

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
    logits_RV: Tensor, temperature_R: Tensor, top_k_R: Tensor, top_p_R: Tensor, uniform_R: Tensor
) -> tuple[TensorSpec, ...]:
    specs = _greedy_specs(logits_RV)
    shape = (logits_RV.shape[0],)
    check_tensor("temperature", temperature_R, shape, torch.float32)
    check_tensor("top_k", top_k_R, shape, torch.int32)
    check_tensor("top_p", top_p_R, shape, torch.float32)
    if uniform_R.dtype != torch.float64:
        check_tensor("uniform", uniform_R, shape, torch.float32)
    check_tensor("uniform", uniform_R, shape)
    check_contiguous(temperature=temperature_R, top_k=top_k_R, top_p=top_p_R, uniform=uniform_R)
    return specs


def _sample_calls(
    outs: tuple[Tensor, ...],
    logits_RV: Tensor,
    temperature_R: Tensor,
    top_k_R: Tensor,
    top_p_R: Tensor,
    uniform_R: Tensor,
) -> list[Call]:
    num_rows, vocab_size = logits_RV.shape
    is_double = int(uniform_R.dtype == torch.float64)
    args = (logits_RV, outs[0], vocab_size, temperature_R, top_k_R, top_p_R, uniform_R, is_double)
    return [Call("sample", num_rows, args)]


OPERATORS = (
    Operator("greedy", "(Tensor logits) -> Tensor", _greedy_specs, _greedy_calls),
    Operator(
        "sample",
        "(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor uniform) -> Tensor",
        _sample_specs,
        _sample_calls,
    ),
)
