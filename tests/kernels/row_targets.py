"""Kernel sets and dtypes that treat rows alone, for tests of layer operators."""

import pytest
import torch
from torch import Tensor

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.fallback import TorchKernels
from noria.kernels.neuron.target import NeuronKernels
from noria.kernels.reference import ReferenceKernels

CPU, REFERENCE = CpuKernels(), ReferenceKernels()
NEURON = NeuronKernels(device="cpu")
TARGETS = [
    *((REFERENCE, dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)),
    *((CPU, dtype) for dtype in (torch.float32, torch.bfloat16)),
    *((TorchKernels(), dtype) for dtype in (torch.float32, torch.bfloat16)),
    *((NEURON, dtype) for dtype in (torch.float32, torch.bfloat16)),
]
EVERY = pytest.mark.parametrize(
    ("kernels", "dtype"), TARGETS, ids=[f"{type(k).__name__}-{str(d)[6:]}" for k, d in TARGETS]
)
INVARIANT = pytest.mark.parametrize(
    ("kernels", "dtype"),
    [pair for pair in TARGETS if pair[0] is not NEURON],  # its linear layers are torch's
    ids=[f"{type(k).__name__}-{str(d)[6:]}" for k, d in TARGETS if k is not NEURON],
)
CPU_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])


def wide(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that sums and weights of rows have."""
    return torch.promote_types(dtype, torch.float32)


def rand(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return normal numbers, the same ones rounded for every dtype."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def int32(values) -> Tensor:
    """Return a tensor of int32, as index inputs are."""
    return torch.tensor(values, dtype=torch.int32)


def tokens(num_rows: int) -> Tensor:
    """Return a mask in which every row is a token."""
    return torch.ones(num_rows, dtype=torch.int32)
