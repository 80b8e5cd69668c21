"""What tests of attention on several targets share: who runs it, and how results are compared."""

from __future__ import annotations

import pytest
import torch
from attention_cases import Heads, Request, Step, make_decode, make_prefill, same_bits
from dense_attention import dense_attention
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.reference import ReferenceKernels

CPU = CpuKernels()
TARGETS = pytest.mark.parametrize("kernels", [ReferenceKernels(), CPU], ids=["reference", "cpu"])
PHASES = pytest.mark.parametrize("make", [make_prefill, make_decode])
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
DTYPES = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=["f32", "bf16"])
NAN = float("nan")
BLOCK_SIZES = pytest.mark.parametrize("block_size", [3, 4, 16, 32])
ODD = [Request(70, 4, 1), Request(0, 3, 2), Request(15, 1, 3), Request(33, 2, 4)]


def windows_of(block_size: int) -> list[int | None]:
    """One token, around a block edge, two blocks, past every context, and none."""
    return [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 1000, None]


def heads_of(block_size: int, window: int | None, dtype: torch.dtype = torch.float32) -> Heads:
    """Heads of 8 dims, three to a key."""
    return Heads(dtype=dtype, block_size=block_size, window=window, group=3)


def rows_of(step: Step, kernels: KernelSet) -> list[Tensor]:
    """The real rows of each request."""
    return step.request_rows(step.run(kernels)[0])


def all_same_bits(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(same_bits(*pair) for pair in zip(first, second, strict=True))


def error_of(step: Step, output: Tensor) -> float:
    """The largest difference from the dense oracle; NaN counts as infinite."""
    pairs = zip(step.request_rows(output), dense_attention(step), strict=True)
    errors = [rows.double() - torch.from_numpy(expected) for rows, expected in pairs]
    return max(float(error.abs().nan_to_num(nan=float("inf")).max()) for error in errors)
