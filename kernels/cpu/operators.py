"""What an operator of this target is: the shapes it makes and the commands that fill them.

Each operator is defined once. Applied eagerly it allocates its results and runs its commands;
under export it becomes a node, of which only the shapes are used; lowering a graph takes its
commands over fixed buffers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .native import Call, Library

NAMESPACE = "noria_cpu"
DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}
FP8 = torch.float8_e4m3fn
"""What a cache may hold besides; nothing is computed with it."""
_NAMES = {**DTYPES, FP8: "fp8"}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape and dtype of a contiguous result."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """How many elements the shape has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator.

    ``specs`` checks the arguments and returns one spec per result (it may only look at shapes
    and dtypes); ``calls`` takes the results, then the same arguments.
    """

    name: str
    schema: str
    specs: Callable[..., tuple[TensorSpec, ...]]
    calls: Callable[..., list[Call]]

    def new(self, specs: Sequence[TensorSpec]) -> tuple[Tensor, ...]:
        """Allocate results."""
        return tuple(torch.empty(spec.shape, dtype=spec.dtype) for spec in specs)

    def apply(self, library: Library, *args: Any) -> Any:
        """Run now by ``library``, or be a node of the graph traced: of no, one or more results."""
        if torch.compiler.is_exporting():
            return getattr(getattr(torch.ops, NAMESPACE), self.name)(*args)
        outs = self.new(self.specs(*args))
        library.call(self.calls(outs, *args))
        return _returned(outs)

    def fake(self, *args: Any) -> Tensor | tuple[Tensor, ...] | None:
        """Check and allocate: what export runs, with tensors that hold no data."""
        return _returned(self.new(self.specs(*args)))


def _returned(outs: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...] | None:
    if len(outs) > 1:
        return outs
    return outs[0] if outs else None


def kernel_name(name: str, *dtypes: torch.dtype) -> str:
    """Return the C name of a kernel for these dtypes."""
    return "_".join((name, *(_NAMES[dtype] for dtype in dtypes)))


def check_dtype(name: str, tensor: Tensor) -> None:
    """Raise ValueError unless the kernels compute with this dtype."""
    if tensor.dtype not in DTYPES:
        known = " or ".join(str(dtype) for dtype in DTYPES)
        raise ValueError(f"{name} has dtype {tensor.dtype}, expected {known}")


def check_dense(name: str, tensor: Tensor, num_dims: int) -> None:
    """Raise ValueError unless the last ``num_dims`` dimensions are contiguous.

    A dimension of size 1 may have any stride.
    """
    expected = 1
    if tensor.numel() == 0:
        return
    for dim in range(tensor.dim() - 1, tensor.dim() - 1 - num_dims, -1):
        if tensor.shape[dim] != 1 and tensor.stride(dim) != expected:
            raise ValueError(f"{name} has strides {tensor.stride()}, expected dense rows")
        expected *= tensor.shape[dim]


def check_contiguous(**tensors: Tensor) -> None:
    """Raise ValueError unless every tensor is contiguous."""
    for name, tensor in tensors.items():
        check_dense(name, tensor, tensor.dim())


def row_chunks(num_rows: int, row_elements: int) -> tuple[int, int]:
    """Return how many tasks, of how many rows each: about 16 thousand elements a task."""
    rows = max(1, 16384 // max(1, row_elements))
    return -(-num_rows // rows), rows
