"""Operators that work row by row. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ..contract import check_rotated_dims, check_tensor
from .native import Call, Chunk
from .operators import (
    Operator,
    TensorSpec,
    check_contiguous,
    check_dense,
    check_dtype,
    kernel_name,
    row_chunks,
)


def _take_rows_specs(table_VE: Tensor, ids_R: Tensor) -> tuple[TensorSpec, ...]:
    check_dtype("table", table_VE)
    check_dense("table", table_VE, 1)
    check_tensor("row ids", ids_R, (ids_R.shape[0],), torch.int32)
    check_contiguous(ids=ids_R)
    return (TensorSpec((ids_R.shape[0], table_VE.shape[1]), table_VE.dtype),)


def _take_rows_calls(outs: tuple[Tensor, ...], table_VE: Tensor, ids_R: Tensor) -> list[Call]:
    (num_rows,), (table_rows, width) = ids_R.shape, table_VE.shape
    tasks, rows = row_chunks(num_rows, width)
    args = (table_VE, ids_R, outs[0], num_rows, rows, width, table_rows, table_VE.stride(0))
    return [Call(kernel_name("take_rows", table_VE.dtype), tasks, args)]


def _take_scaled_rows_specs(
    table_VE: Tensor, ids_R: Tensor, scale: float
) -> tuple[TensorSpec, ...]:
    return _take_rows_specs(table_VE, ids_R)


def _take_scaled_rows_calls(
    outs: tuple[Tensor, ...], table_VE: Tensor, ids_R: Tensor, scale: float
) -> list[Call]:
    (call,) = _take_rows_calls(outs, table_VE, ids_R)
    name = kernel_name("take_scaled_rows", table_VE.dtype)
    return [Call(name, call.num_tasks, (*call.args, float(scale)))]


def _norm_specs(x: Tensor, weight: Tensor, eps: float) -> tuple[TensorSpec, ...]:
    """Check rows ``[R, E]``, or heads ``[R, H, D]``."""
    check_dtype("x", x)
    check_tensor("x", x, (*x.shape[:-1], *weight.shape))
    check_tensor("weight", weight, (x.shape[-1],), torch.float32)
    check_dense("x", x, x.dim() - 1)
    check_contiguous(weight=weight)
    return (TensorSpec(tuple(x.shape), x.dtype),)


def _norm_calls(outs: tuple[Tensor, ...], x: Tensor, weight: Tensor, eps: float) -> list[Call]:
    num_rows, num_heads, width = x.shape[0], math.prod(x.shape[1:-1]), x.shape[-1]
    tasks, rows = row_chunks(num_rows, num_heads * width)
    args = (x, weight, outs[0], num_rows, rows, width, x.stride(0), float(eps), num_heads)
    return [Call(kernel_name("rms_norm", x.dtype), tasks, args)]


def _add_norm_specs(
    x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
) -> tuple[TensorSpec, ...]:
    check_tensor("x", x_RE, tuple(x_RE.shape[:2]))
    (spec,) = _norm_specs(x_RE, weight_E, eps)
    check_tensor("residual", residual_RE, spec.shape, spec.dtype)
    check_dense("residual", residual_RE, 1)
    return (spec, spec)


def _add_norm_calls(
    outs: tuple[Tensor, ...], x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
) -> list[Call]:
    num_rows, width = x_RE.shape
    tasks, rows = row_chunks(num_rows, 2 * width)
    args = (x_RE, weight_E, outs[0], num_rows, rows, width, x_RE.stride(0), float(eps))
    more = (residual_RE, outs[1], residual_RE.stride(0))
    return [Call(kernel_name("add_rms_norm", x_RE.dtype), tasks, (*args, *more), Chunk(rows, 1))]


def _rope_specs(
    q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
) -> tuple[TensorSpec, ...]:
    num_rows, _, dim = q_RHD.shape
    check_dtype("q", q_RHD)
    check_tensor("k", k_RKD, (num_rows, k_RKD.shape[1], dim), q_RHD.dtype)
    check_tensor("positions", positions_R, (num_rows,), torch.int32)
    check_tensor("cos_sin", cos_sin_CY, tuple(cos_sin_CY.shape[:2]), torch.float32)
    check_rotated_dims(cos_sin_CY.shape[1], dim)
    check_dense("q", q_RHD, 2)
    check_dense("k", k_RKD, 2)
    check_contiguous(positions=positions_R, cos_sin=cos_sin_CY)
    return tuple(TensorSpec(tuple(x.shape), q_RHD.dtype) for x in (q_RHD, k_RKD))


def _rope_calls(
    outs: tuple[Tensor, ...], q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
) -> list[Call]:
    num_rows, num_heads, dim = q_RHD.shape
    num_kv_heads = k_RKD.shape[1]
    tasks, rows = row_chunks(num_rows, (num_heads + num_kv_heads) * dim)
    args = (q_RHD, k_RKD, outs[0], num_rows, rows, outs[1], positions_R, cos_sin_CY)
    num_positions, num_rotated = cos_sin_CY.shape
    sizes = (num_heads, num_kv_heads, q_RHD.stride(0), k_RKD.stride(0), dim)
    angles = (num_positions, num_rotated // 2)
    return [Call(kernel_name("rope", q_RHD.dtype), tasks, (*args, *sizes, *angles), Chunk(rows, 1))]


def _gated_specs(gate_up_R2F: Tensor) -> tuple[TensorSpec, ...]:
    num_rows, width = gate_up_R2F.shape
    check_dtype("gate_up", gate_up_R2F)
    check_dense("gate_up", gate_up_R2F, 1)
    if width % 2:
        raise ValueError(f"gate_up has {width} columns, expected an even number")
    return (TensorSpec((num_rows, width // 2), gate_up_R2F.dtype),)


def _gated_calls(name: str, outs: tuple[Tensor, ...], gate_up_R2F: Tensor) -> list[Call]:
    num_rows, width = gate_up_R2F.shape
    tasks, rows = row_chunks(num_rows, 2 * width)
    args = (gate_up_R2F, None, outs[0], num_rows, rows, width // 2, gate_up_R2F.stride(0))
    return [Call(kernel_name(name, gate_up_R2F.dtype), tasks, args, Chunk(rows, 1))]


def _gated(name: str) -> Operator:
    calls = functools.partial(_gated_calls, name)
    return Operator(name, "(Tensor gate_up) -> Tensor", _gated_specs, calls)


def _soft_cap_specs(x_RV: Tensor, cap: float) -> tuple[TensorSpec, ...]:
    check_dtype("x", x_RV)
    check_tensor("x", x_RV, tuple(x_RV.shape[:2]))
    check_dense("x", x_RV, 1)
    return (TensorSpec(tuple(x_RV.shape), x_RV.dtype),)


def _soft_cap_calls(outs: tuple[Tensor, ...], x_RV: Tensor, cap: float) -> list[Call]:
    num_rows, width = x_RV.shape
    tasks, rows = row_chunks(num_rows, width)
    args = (x_RV, None, outs[0], num_rows, rows, width, x_RV.stride(0), float(cap))
    return [Call(kernel_name("soft_cap", x_RV.dtype), tasks, args)]


OPERATORS = (
    Operator(
        "take_rows", "(Tensor table, Tensor ids) -> Tensor", _take_rows_specs, _take_rows_calls
    ),
    Operator(
        "take_scaled_rows",
        "(Tensor table, Tensor ids, float scale) -> Tensor",
        _take_scaled_rows_specs,
        _take_scaled_rows_calls,
    ),
    Operator(
        "rms_norm", "(Tensor x, Tensor weight, float eps) -> Tensor", _norm_specs, _norm_calls
    ),
    Operator(
        "add_rms_norm",
        "(Tensor x, Tensor residual, Tensor weight, float eps) -> (Tensor, Tensor)",
        _add_norm_specs,
        _add_norm_calls,
    ),
    Operator(
        "rope",
        "(Tensor q, Tensor k, Tensor positions, Tensor cos_sin) -> (Tensor, Tensor)",
        _rope_specs,
        _rope_calls,
    ),
    _gated("silu_mul"),
    _gated("gelu_mul"),
    Operator("soft_cap", "(Tensor x, float cap) -> Tensor", _soft_cap_specs, _soft_cap_calls),
)
