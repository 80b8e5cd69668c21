"""Checkpoint tensors on their way into a model: converted, joined and packed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ...kernels.kernel_set import KernelSet


class Weights:
    """The tensors of a checkpoint, as a target takes them."""

    def __init__(
        self,
        tensors: Mapping[str, Tensor],
        kernels: KernelSet,
        dtype: torch.dtype,
        *,
        norm_offset: float = 0.0,
    ) -> None:
        """Read ``tensors`` as ``dtype`` for this target; ``norm_offset`` joins norm weights."""
        self.dtype = dtype
        self._tensors = tensors
        self._kernels = kernels
        self._norm_offset = norm_offset

    def get(self, name: str) -> Tensor:
        """Return one tensor in the model's dtype."""
        return self._tensors[name].to(self.dtype).contiguous()

    def norm(self, name: str) -> Tensor:
        """Return the weight of a norm: fp32 (fp64 for fp64), as kernels take it."""
        wide = torch.promote_types(self.dtype, torch.float32)
        weight = self._tensors[f"{name}.weight"].to(wide).contiguous()
        return weight + self._norm_offset if self._norm_offset else weight

    def linear(self, *names: str, out_dtype: torch.dtype | None = None) -> nn.Module:
        """Pack the linear layers of these names into one, their outputs side by side."""
        weights = [self.get(f"{name}.weight") for name in names]
        # One alone is not joined: a tied head then shares the memory of the embedding.
        weight = join(weights) if len(weights) > 1 else weights[0]
        biases = [self.get(f"{name}.bias") for name in names if f"{name}.bias" in self._tensors]
        bias = join(biases) if biases else None
        return self._kernels.make_linear(weight, bias, out_dtype or self.dtype)


def join(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate along the first axis."""
    if parts[0].is_meta:  # for which torch would import its compiler, in a second and more
        return parts[0].new_empty((sum(map(len, parts)), *parts[0].shape[1:]))
    return torch.cat(tuple(parts))


def stack(parts: Sequence[Tensor]) -> Tensor:
    """Put tensors of one shape side by side, along a new first axis."""
    return join([part.unsqueeze(0) for part in parts])
