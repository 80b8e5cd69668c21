"""The KernelSet `cpu` where no C++ compiler is: reference operators, oneDNN-packed linears."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract import check_tensor
from ..reference import ReferenceKernels
from .target import CpuKernels

_ROWS = 4
"""oneDNN gives a row the same bits at row counts that are multiples of this (design 4.5)."""
_PACKED_FOR_ROWS = 32


class PackedLinear(nn.Module):
    """A weight in oneDNN's layout; maps ``[R, I]`` to ``[R, O]``."""

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype) -> None:
        """Pack the weight; the original is not kept."""
        super().__init__()
        if bias_O is not None:
            check_tensor("bias", bias_O, (weight_OI.shape[0],))
            bias_O = bias_O.to(weight_OI.dtype)
        # Not a buffer: a packed tensor is opaque and has no storage to copy or to save.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), _PACKED_FOR_ROWS)
        self.bias_O = bias_O
        self.out_dtype = out_dtype

    def forward(self, x_RI: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias``, the rows padded to a multiple of 4 inside."""
        num_rows = x_RI.shape[0]
        padded = F.pad(x_RI, (0, 0, 0, -num_rows % _ROWS))
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            padded, self.packed, self.bias_O, "none", [], ""
        )
        return result[:num_rows].to(self.out_dtype)


class TorchKernels(ReferenceKernels, CpuKernels):
    """Plain torch for fp32 and bf16; slower, and exported graphs run as they are."""

    name = "cpu"

    def __init__(self, compiler: str | None = None) -> None:
        """Need nothing."""
        super().__init__()

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Pack the weight for oneDNN where it can, else keep it."""
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return super().make_linear(weight_OI, bias_O, out_dtype)
        return PackedLinear(weight_OI, bias_O, out_dtype)
