"""The parts that a layer of a decoder is put together from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from ...kernels.kernel_set import KernelSet
from .architecture import Architecture, Experts
from .rope_scaling import Rope
from .weights import Weights, join, stack


class Step(Protocol):
    """What a layer asks of the step that it runs in."""

    @property
    def token_mask(self) -> Tensor:
        """Int32 ``[R]``: 1 for a token, 0 for padding. Only models with experts ask for it."""

    def attend(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Write the new keys and values of a layer, then attend: ``[R, H*D]``."""


@dataclass(frozen=True, slots=True)
class Builder:
    """What every part is made from; ``rope_tables`` are shared by the layers of a rope."""

    architecture: Architecture
    kernels: KernelSet
    weights: Weights
    rope_tables: Mapping[Rope, Tensor]


class HeadNorm(nn.Module):
    """Norms every query and key head."""

    q_norm: Tensor
    k_norm: Tensor

    def __init__(self, prefix: str, builder: Builder) -> None:
        """Take the two norms of the layer at ``prefix``."""
        super().__init__()
        names = builder.architecture.names
        self.kernels, self.eps = builder.kernels, builder.architecture.rms_norm_eps
        self.register_buffer("q_norm", builder.weights.norm(f"{prefix}.{names.q_norm}"))
        self.register_buffer("k_norm", builder.weights.norm(f"{prefix}.{names.k_norm}"))

    def forward(self, q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, normed."""
        rms_norm = self.kernels.rms_norm
        return rms_norm(q_RHD, self.q_norm, self.eps), rms_norm(k_RKD, self.k_norm, self.eps)


class Rotation(nn.Module):
    """Turns queries and keys by their positions."""

    cos_sin: Tensor

    def __init__(self, cos_sin_CY: Tensor, kernels: KernelSet) -> None:
        """Keep the table, which layers share."""
        super().__init__()
        self.kernels = kernels
        self.register_buffer("cos_sin", cos_sin_CY)

    def forward(self, q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor) -> tuple[Tensor, Tensor]:
        """Return both, turned."""
        return self.kernels.rope(q_RHD, k_RKD, positions_R, self.cos_sin)


class Attention(nn.Module):
    """Projections around the attention of the step."""

    def __init__(self, index: int, builder: Builder) -> None:
        """Take the tensors of layer ``index``."""
        super().__init__()
        arch, weights = builder.architecture, builder.weights
        names, prefix = arch.names, arch.names.layer(index)
        self.index, self.head_dim = index, arch.head_dim
        self.num_heads, self.num_kv_heads = arch.num_heads, arch.num_kv_heads
        self.qkv = weights.linear(*(f"{prefix}.{name}" for name in names.qkv))
        self.out = weights.linear(f"{prefix}.{names.out}")
        rope = arch.layers[index].rope
        changes = [HeadNorm(prefix, builder)] if arch.qk_norm else []
        turns = [] if rope is None else [Rotation(builder.rope_tables[rope], builder.kernels)]
        self.changes = nn.ModuleList([*changes, *turns])

    def forward(self, x_RE: Tensor, positions_R: Tensor, step: Step) -> Tensor:
        """Return the attention output ``[R, E]`` of normed rows."""
        heads, kv_heads, dim = self.num_heads, self.num_kv_heads, self.head_dim
        q, k, v = self.qkv(x_RE).split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q_RHD, k_RKD = q.unflatten(1, (heads, dim)), k.unflatten(1, (kv_heads, dim))
        for change in self.changes:
            q_RHD, k_RKD = change(q_RHD, k_RKD, positions_R)
        attended = step.attend(self.index, q_RHD, k_RKD, v.unflatten(1, (kv_heads, dim)))
        output: Tensor = self.out(attended)
        return output


class DenseMLP(nn.Module):
    """One gated MLP that every token uses."""

    def __init__(self, prefix: str, builder: Builder) -> None:
        """Take the tensors of the layer at ``prefix``."""
        super().__init__()
        names, kernels = builder.architecture.names, builder.kernels
        self.gate_up = builder.weights.linear(*(f"{prefix}.{name}" for name in names.gate_up))
        self.down = builder.weights.linear(f"{prefix}.{names.down}")
        activations = {"silu": kernels.silu_mul, "gelu_tanh": kernels.gelu_mul}
        self.activation = activations[builder.architecture.activation]

    def forward(self, x_RE: Tensor, step: Step) -> Tensor:
        """Return the MLP output ``[R, E]`` of normed rows."""
        output: Tensor = self.down(self.activation(self.gate_up(x_RE)))
        return output


class ExpertMLP(nn.Module):
    """Gated MLPs of which each token uses a few; padding uses none."""

    def __init__(self, prefix: str, experts: Experts, builder: Builder) -> None:
        """Take the tensors of the layer at ``prefix``."""
        super().__init__()
        names, weights = builder.architecture.names, builder.weights
        self.kernels, self.kind = builder.kernels, experts
        wide = torch.promote_types(weights.dtype, torch.float32)
        self.router = weights.linear(f"{prefix}.{names.router}", out_dtype=wide)
        parts = [
            [f"{prefix}.{part}.weight" for part in names.expert(index)]
            for index in range(experts.num)
        ]
        gate_up = stack([join([weights.get(gate), weights.get(up)]) for gate, up, _ in parts])
        down = stack([weights.get(down) for _, _, down in parts])
        self.experts = builder.kernels.make_experts(gate_up, down, "silu")

    def forward(self, x_RE: Tensor, step: Step) -> Tensor:
        """Return the weighted sum of each row's experts, ``[R, E]``."""
        kind = self.kind
        experts, weights = self.kernels.route(
            self.router(x_RE), step.token_mask, kind.num_per_token, kind.normalize
        )
        output: Tensor = self.experts(x_RE, experts, weights)
        return output


class OutputNorm(nn.Module):
    """Norms what a block adds to the residual stream."""

    weight: Tensor

    def __init__(self, name: str, builder: Builder) -> None:
        """Take the norm of this name."""
        super().__init__()
        self.kernels, self.eps = builder.kernels, builder.architecture.rms_norm_eps
        self.register_buffer("weight", builder.weights.norm(name))

    def forward(self, x_RE: Tensor) -> Tensor:
        """Return the normed rows."""
        return self.kernels.rms_norm(x_RE, self.weight, self.eps)


class SoftCap(nn.Module):
    """Bounds logits smoothly."""

    def __init__(self, cap: float, kernels: KernelSet) -> None:
        """Keep the bound."""
        super().__init__()
        self.kernels, self.cap = kernels, cap

    def forward(self, logits_RV: Tensor) -> Tensor:
        """Return ``cap * tanh(logits / cap)``."""
        return self.kernels.soft_cap(logits_RV, self.cap)


def make_output_norm(name: str, builder: Builder) -> nn.Module:
    """Return the norm after a block, or nothing where the family has none."""
    return OutputNorm(name, builder) if builder.architecture.sandwich_norms else nn.Identity()


def make_mlp(index: int, builder: Builder) -> nn.Module:
    """Return the MLP of a layer: dense or of experts."""
    prefix = builder.architecture.names.layer(index)
    experts = builder.architecture.layers[index].experts
    if experts is None:
        return DenseMLP(prefix, builder)
    return ExpertMLP(prefix, experts, builder)
