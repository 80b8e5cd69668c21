"""What is fixed about an attention layer in tests: sizes, options, and what its cache holds."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
import torch
from torch import Tensor

from noria.kernels.contract import AttentionSpec

FP8 = torch.float8_e4m3fn
BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    FP8: torch.int8,
}


@dataclass(frozen=True)
class Heads:
    """Sizes of one attention layer, and what else is fixed about it.

    ``cache_dtype`` None is ``dtype``; the scales are those of an FP8 cache.
    """

    num_kv_heads: int = 2
    group: int = 2
    k_dim: int = 8
    v_dim: int = 8
    block_size: int = 4
    dtype: torch.dtype = torch.float64
    window: int | None = None
    softcap: float | None = None
    cache_dtype: torch.dtype | None = None
    k_scale: float = 1.0
    v_scale: float = 1.0

    @property
    def scale(self) -> float:
        return self.k_dim**-0.5

    @property
    def spec(self) -> AttentionSpec:
        return AttentionSpec(self.scale, self.softcap, self.window, self.k_scale, self.v_scale)

    def stored(self, x: Tensor, scale: float) -> Tensor:
        """What the cache holds for x; FP8 by the rounding of another library."""
        if not self.is_fp8:
            return x.to(self.cache_dtype or self.dtype)
        wide = x.double() if x.dtype == torch.float64 else x.float()
        scaled = np.clip(wide.numpy() / wide.numpy().dtype.type(scale), -448, 448)
        codes = scaled.astype(np.float32).astype(ml_dtypes.float8_e4m3fn).view(np.int8)
        return torch.from_numpy(codes).view(FP8)

    def read(self, x: Tensor, scale: float) -> Tensor:
        """What attention sees of x, fp64."""
        return self.stored(x, scale).float().double() * scale if self.is_fp8 else x.double()

    @property
    def is_fp8(self) -> bool:
        return self.cache_dtype == FP8

    def first_seen(self, position: int) -> int:
        """The first position that a query sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Compare bit patterns: NaN equals itself, 0.0 differs from -0.0."""
    integer = BITS[first.dtype]
    return torch.equal(first.contiguous().view(integer), second.contiguous().view(integer))
