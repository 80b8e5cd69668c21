"""The KernelSet `cpu` where its C++ cannot be built: reference operators, oneDNN's linears."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..contract import check_tensor
from ..reference import ReferenceKernels
from ..reference.experts import Experts
from ..source_digest import source_digest
from .build import detect_instruction_set
from .target import CpuKernels

_ROWS = 4
"""oneDNN gives a row the same bits at row counts that are multiples of this."""
_PACKED_FOR_ROWS = 32


class PackedLinear(nn.Module):
    """A weight in oneDNN's layout; maps ``[R, I]`` to ``[R, O]``.

    oneDNN rounds a result to the dtype of the weight: a wider one is computed with a weight of
    that width, which holds the same values. So is bf16 where the processor lacks what oneDNN
    needs for it.
    """

    bias_O: Tensor | None

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype) -> None:
        """Pack the weight; the original is not kept."""
        super().__init__()
        self.dtype = _compute_dtype(weight_OI.dtype, out_dtype)
        if bias_O is not None:
            check_tensor("bias", bias_O, (weight_OI.shape[0],))
            bias_O = bias_O.detach().to(self.dtype)
        # Not a buffer: a packed tensor is opaque and has no storage to copy or to save.
        self.packed = torch.ops.mkldnn._reorder_linear_weight(
            weight_OI.detach().to(self.dtype), _PACKED_FOR_ROWS
        )
        self.register_buffer("bias_O", bias_O)
        self.out_dtype = out_dtype

    @property
    def opaque_bytes(self) -> int:
        """Bytes of the packed weight, oneDNN's padding included."""
        return int(torch.ops.mkldnn._nbytes(self.packed))

    def forward(self, x_RI: Tensor) -> Tensor:
        """Return ``x @ weight.T + bias``, the rows padded to a multiple of 4 inside."""
        num_rows = x_RI.shape[0]
        padded = F.pad(x_RI.to(self.dtype), (0, 0, 0, -num_rows % _ROWS))
        result: Tensor = torch.ops.mkldnn._linear_pointwise(
            padded, self.packed, self.bias_O, "none", [], ""
        )
        return result[:num_rows].to(self.out_dtype)


class TorchKernels(ReferenceKernels, CpuKernels):
    """Plain torch for fp32 and bf16: slower, and graphs run uncompiled, operator by operator."""

    name = "cpu"

    def __init__(self, compiler: str | None = None, built: Path | None = None) -> None:
        """Need nothing."""
        super().__init__()

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The machine's instruction set and the sources; there is no compiler."""
        return {
            "instruction_set": detect_instruction_set().name,
            "compiler": "none",
            "sources": source_digest("*.py", "cpu/*.py", "reference/*.py"),
        }

    @property
    def library(self) -> None:
        """None: there is no compiler to build one."""

    def for_tracing(self) -> TorchKernels:
        """Return these kernels: a trace of theirs is empty."""
        return self

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Pack the weight for oneDNN where it can, else keep it."""
        if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
            return super().make_linear(weight_OI, bias_O, out_dtype)
        return PackedLinear(weight_OI, bias_O, out_dtype)

    def make_experts(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> nn.Module:
        """Pack two linear layers per expert."""
        return Experts(gate_up_X2FE, down_XEF, activation, self.make_linear)


def _compute_dtype(weight_dtype: torch.dtype, out_dtype: torch.dtype) -> torch.dtype:
    dtype = torch.promote_types(weight_dtype, out_dtype)
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return dtype
