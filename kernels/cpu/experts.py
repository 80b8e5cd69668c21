"""Mixture of experts over weights packed once. Shape letters as in ``kernels/kernel_set.py``.

A graph groups rows by expert, multiplies the rows of each expert with its panels, and adds up what
a row's experts give. L counts grouped rows: one per row and rank, those of no expert unused.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..contract import check_expert_weights, check_tensor, check_top_k
from .linear import PANEL, pack, packed_shape
from .memory import Arena
from .native import Call, Library
from .operators import (
    Operator,
    TensorSpec,
    check_contiguous,
    check_dense,
    check_dtype,
    kernel_name,
    row_chunks,
)

_GROUP = 3


class Experts(nn.Module):
    """Packed expert MLPs; a row is multiplied with the panels of its own experts only.

    A row's result has the same bits whatever the other rows, their number and their experts.
    """

    gate_up: Tensor
    down: Tensor

    def __init__(
        self,
        gate_up_X2FE: Tensor,
        down_XEF: Tensor,
        activation: str,
        *,
        arena: Arena,
        library: Library,
    ) -> None:
        """Pack the weights into ``arena``; the originals are not kept.

        Raises:
            ValueError: the weights do not fit together, or the activation is not known.
        """
        super().__init__()
        check_expert_weights(gate_up_X2FE, down_XEF, activation)
        self.num_experts, self.hidden_size, self.inner_size = down_XEF.shape
        self._library = library
        halves = gate_up_X2FE.detach().reshape(-1, self.inner_size, self.hidden_size)
        self.register_buffer("gate_up", pack(halves, arena, library=library))
        self.register_buffer("down", pack(down_XEF.detach(), arena, library=library))

    def forward(self, x_RE: Tensor, experts_RA: Tensor, weights_RA: Tensor) -> Tensor:
        """Return ``[R, E]`` in the dtype of x."""
        check_tensor("experts", experts_RA, (x_RE.shape[0], experts_RA.shape[1]), torch.int32)
        grouped = _GROUP_ROWS.apply(self._library, experts_RA, self.num_experts)
        starts, rows_L, places_RA = grouped
        gate_up = (self.gate_up, self.num_experts, self.inner_size)
        inner_LF = _GATE_UP.apply(self._library, x_RE, starts, rows_L, *gate_up)
        down = (self.down, self.num_experts, self.hidden_size)
        down_LE = _DOWN.apply(self._library, inner_LF, starts, *down)
        result: Tensor = _COMBINE.apply(
            self._library, down_LE, places_RA, weights_RA, inner_LF.dtype
        )
        return result


def _route_specs(
    logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
) -> tuple[TensorSpec, ...]:
    num_rows, num_experts = logits_RX.shape
    check_dtype("router logits", logits_RX)
    check_dense("router logits", logits_RX, 1)
    check_tensor("token_mask", token_mask_R, (num_rows,), torch.int32)
    check_contiguous(token_mask=token_mask_R)
    check_top_k(top_k, num_experts)
    shape = (num_rows, top_k)
    return (TensorSpec(shape, torch.int32), TensorSpec(shape, torch.float32))


def _route_calls(
    outs: tuple[Tensor, ...], logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
) -> list[Call]:
    num_rows, num_experts = logits_RX.shape
    tasks, rows = row_chunks(num_rows, num_experts * top_k)
    sizes = (num_rows, rows, logits_RX.stride(0), num_experts, top_k, int(normalize))
    name = kernel_name("route", logits_RX.dtype)
    return [Call(name, tasks, (logits_RX, token_mask_R, *outs, *sizes))]


def _group_specs(experts_RA: Tensor, num_experts: int) -> tuple[TensorSpec, ...]:
    check_tensor("experts", experts_RA, tuple(experts_RA.shape[:2]), torch.int32)
    check_contiguous(experts=experts_RA)
    shapes = ((num_experts + 1,), (experts_RA.numel(),), tuple(experts_RA.shape))
    return tuple(TensorSpec(shape, torch.int32) for shape in shapes)


def _group_calls(outs: tuple[Tensor, ...], experts_RA: Tensor, num_experts: int) -> list[Call]:
    sizes = (experts_RA.numel(), experts_RA.shape[1], num_experts)
    return [Call("group_rows", 1, (experts_RA, *outs, *sizes))]


def _gate_up_specs(
    x_RE: Tensor, starts: Tensor, rows_L: Tensor, packed: Tensor, num_experts: int, inner_size: int
) -> tuple[TensorSpec, ...]:
    check_tensor("x", x_RE, tuple(x_RE.shape[:2]), packed.dtype)
    check_dense("x", x_RE, 1)
    check_contiguous(starts=starts, rows=rows_L, packed=packed)
    _check_packed(packed, 2 * num_experts, inner_size, x_RE.shape[1])
    return (TensorSpec((rows_L.shape[0], inner_size), x_RE.dtype),)


def _gate_up_calls(
    outs: tuple[Tensor, ...],
    x_RE: Tensor,
    starts: Tensor,
    rows_L: Tensor,
    packed: Tensor,
    num_experts: int,
    inner_size: int,
) -> list[Call]:
    sizes = (x_RE.shape[1], inner_size, x_RE.stride(0), _GROUP)
    args = (x_RE, starts, rows_L, packed, outs[0], *sizes)
    name = kernel_name("expert_gate_up", x_RE.dtype)
    return [Call(name, num_experts * _num_groups(inner_size), args)]


def _down_specs(
    inner_LF: Tensor, starts: Tensor, packed: Tensor, num_experts: int, hidden_size: int
) -> tuple[TensorSpec, ...]:
    check_contiguous(inner=inner_LF, starts=starts, packed=packed)
    _check_packed(packed, num_experts, hidden_size, inner_LF.shape[1])
    return (TensorSpec((inner_LF.shape[0], hidden_size), torch.float32),)


def _down_calls(
    outs: tuple[Tensor, ...],
    inner_LF: Tensor,
    starts: Tensor,
    packed: Tensor,
    num_experts: int,
    hidden_size: int,
) -> list[Call]:
    args = (inner_LF, starts, packed, outs[0], inner_LF.shape[1], hidden_size, _GROUP)
    name = kernel_name("expert_down", inner_LF.dtype)
    return [Call(name, num_experts * _num_groups(hidden_size), args)]


def _combine_specs(
    down_LE: Tensor, places_RA: Tensor, weights_RA: Tensor, out_dtype: torch.dtype
) -> tuple[TensorSpec, ...]:
    check_tensor("expert weights", weights_RA, tuple(places_RA.shape), torch.float32)
    check_contiguous(down=down_LE, places=places_RA, weights=weights_RA)
    return (TensorSpec((places_RA.shape[0], down_LE.shape[1]), out_dtype),)


def _combine_calls(
    outs: tuple[Tensor, ...],
    down_LE: Tensor,
    places_RA: Tensor,
    weights_RA: Tensor,
    out_dtype: torch.dtype,
) -> list[Call]:
    (num_rows, num_ranks), width = places_RA.shape, down_LE.shape[1]
    tasks, rows = row_chunks(num_rows, num_ranks * width)
    args = (down_LE, places_RA, weights_RA, outs[0], num_rows, rows, num_ranks, width)
    return [Call(kernel_name("combine_experts", out_dtype), tasks, args)]


def _num_groups(num_outputs: int) -> int:
    return math.ceil(math.ceil(num_outputs / PANEL) / _GROUP)


def _check_packed(packed: Tensor, num_weights: int, num_outputs: int, num_inputs: int) -> None:
    shape = packed_shape(num_outputs, num_inputs, packed.dtype)
    check_tensor("packed weights", packed, (num_weights, *shape))


_GROUP_ROWS = Operator(
    "group_rows",
    "(Tensor experts, int num_experts) -> (Tensor, Tensor, Tensor)",
    _group_specs,
    _group_calls,
)
_GATE_UP = Operator(
    "expert_gate_up",
    "(Tensor x, Tensor starts, Tensor rows, Tensor packed, int num_experts, int inner_size) "
    "-> Tensor",
    _gate_up_specs,
    _gate_up_calls,
)
_DOWN = Operator(
    "expert_down",
    "(Tensor inner, Tensor starts, Tensor packed, int num_experts, int hidden_size) -> Tensor",
    _down_specs,
    _down_calls,
)
_COMBINE = Operator(
    "combine_experts",
    "(Tensor down, Tensor places, Tensor weights, ScalarType out_dtype) -> Tensor",
    _combine_specs,
    _combine_calls,
)
OPERATORS = (
    Operator(
        "route",
        "(Tensor logits, Tensor token_mask, int top_k, bool normalize) -> (Tensor, Tensor)",
        _route_specs,
        _route_calls,
    ),
    _GROUP_ROWS,
    _GATE_UP,
    _DOWN,
    _COMBINE,
)
