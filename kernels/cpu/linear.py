"""Linear layers over weights packed once. Shape letters as in ``kernels/kernel_set.py``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..contract import check_tensor
from .memory import Arena
from .native import Call, Chunk, Library
from .operators import Operator, TensorSpec, check_contiguous, check_dense, check_dtype, kernel_name

PANEL = 16
"""Columns of a panel (``csrc/panel.h``)."""
_GROUP = 3
_CHUNK_ROWS = 128
_RESULTS = {(torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16)}
_RESULTS.add((torch.bfloat16, torch.float32))


def packed_shape(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> tuple[int, ...]:
    """Return the shape of panels of 16 outputs: ``[ceil(O/16), I, 16]``.

    bf16 panels hold pairs of inputs: ``[ceil(O/16), ceil(I/2), 16, 2]``.
    """
    is_pairs = dtype == torch.bfloat16
    inner = (-(-num_inputs // 2), PANEL, 2) if is_pairs else (num_inputs, PANEL)
    return (-(-num_outputs // PANEL), *inner)


def pack(weights_XOI: Tensor, arena: Arena, *, library: Library) -> Tensor:
    """Return weights as panels, ``[X, *packed_shape]`` in their dtype; what pads is zero."""
    check_dtype("weight", weights_XOI)
    num_weights, num_outputs, num_inputs = weights_XOI.shape
    shape = packed_shape(num_outputs, num_inputs, weights_XOI.dtype)
    packed = arena.unfetched_zeros((num_weights, *shape), weights_XOI.dtype)
    name = kernel_name("pack", weights_XOI.dtype)
    if packed.is_meta:
        return packed
    for weight_OI, panels in zip(weights_XOI, packed, strict=True):
        args = (weight_OI.contiguous(), panels, num_outputs, num_inputs)
        library.call([Call(name, shape[0], args)])
    return packed


class Linear(nn.Module):
    """A packed weight; maps ``[R, I]`` to ``[R, O]``.

    A row's result has the same bits whatever the number of rows.
    """

    packed: Tensor
    bias_O: Tensor | None

    def __init__(
        self,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        out_dtype: torch.dtype,
        *,
        arena: Arena,
        library: Library,
    ) -> None:
        """Pack the weight into ``arena``; the original is not kept."""
        super().__init__()
        if (weight_OI.dtype, out_dtype) not in _RESULTS:
            raise ValueError(f"a linear of {weight_OI.dtype} cannot give {out_dtype}")
        if bias_O is not None:
            check_tensor("bias", bias_O, (weight_OI.shape[0],))
            bias_O = bias_O.detach().float().contiguous()
        self.num_outputs = weight_OI.shape[0]
        self.num_inputs = weight_OI.shape[1]
        self.out_dtype = out_dtype
        self._library = library
        (packed,) = pack(weight_OI.detach().unsqueeze(0), arena, library=library)
        self.register_buffer("packed", packed)
        self.register_buffer("bias_O", bias_O)

    def forward(self, x_RI: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias``."""
        weight = (self.packed, self.bias_O, self.num_inputs, self.num_outputs)
        result: Tensor = _LINEAR.apply(self._library, x_RI, *weight, self.out_dtype)
        return result


def _specs(
    x_RI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_inputs: int,
    num_outputs: int,
    out_dtype: torch.dtype,
) -> tuple[TensorSpec, ...]:
    check_tensor("x", x_RI, (x_RI.shape[0], num_inputs), packed.dtype)
    check_dense("x", x_RI, 1)
    check_contiguous(packed=packed)
    if bias_O is not None:
        check_tensor("bias", bias_O, (num_outputs,), torch.float32)
        check_contiguous(bias=bias_O)
    return (TensorSpec((x_RI.shape[0], num_outputs), out_dtype),)


def _calls(
    outs: tuple[Tensor, ...],
    x_RI: Tensor,
    packed: Tensor,
    bias_O: Tensor | None,
    num_inputs: int,
    *_result: object,  # told by outs
) -> list[Call]:
    (num_rows, num_outputs), out_dtype = outs[0].shape, outs[0].dtype
    groups = -(-packed.shape[0] // _GROUP)
    chunks = -(-num_rows // _CHUNK_ROWS)
    sizes = (num_rows, num_inputs, num_outputs, x_RI.stride(0), _CHUNK_ROWS, _GROUP)
    name = kernel_name("linear", x_RI.dtype, out_dtype)
    args = (x_RI, packed, bias_O, outs[0], *sizes, num_rows)
    return [Call(name, groups * chunks, args, Chunk(_CHUNK_ROWS, groups, len(args) - 1))]


_LINEAR = Operator(
    "linear",
    "(Tensor x, Tensor packed, Tensor? bias, int num_inputs, int num_outputs, "
    "ScalarType out_dtype) -> Tensor",
    _specs,
    _calls,
)
OPERATORS = (_LINEAR,)
