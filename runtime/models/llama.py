"""The Llama family, built from a target's kernels.

The model never asks which target or phase it runs in: kernels come from the KernelSet it was
built with, attention from the phase's ``Attend``. Weights are packed once, here, and shared by
all graphs. Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from ...kernels.kernel_set import KernelSet
from .architecture import Architecture
from .rope import rope_table


class Attend(Protocol):
    """Attention of one step: writes the new keys and values of a layer, then attends."""

    def __call__(self, layer: int, q_RHD: Tensor, k_RKD: Tensor, v_RKD: Tensor) -> Tensor:
        """Return ``[R, H*D]``."""


class Weights:
    """Checkpoint tensors on their way into a model: converted, joined and packed once."""

    def __init__(
        self, tensors: Mapping[str, Tensor], kernels: KernelSet, dtype: torch.dtype
    ) -> None:
        """Read ``tensors`` (Hugging Face names) as ``dtype`` for this target."""
        self._tensors = tensors
        self._kernels = kernels
        self._dtype = dtype

    def get(self, name: str) -> Tensor:
        """Return one tensor in the model's dtype."""
        return self._tensors[name].to(self._dtype).contiguous()

    def norm(self, name: str) -> Tensor:
        """Return the weight of a norm: fp32 (fp64 for fp64), as kernels take it."""
        wide = torch.promote_types(self._dtype, torch.float32)
        return self._tensors[name].to(wide).contiguous()

    def linear(self, *names: str, out_dtype: torch.dtype | None = None) -> nn.Module:
        """Pack the linear layers of these names into one, their outputs side by side."""
        weights = [self.get(f"{name}.weight") for name in names]
        # One alone is not joined: a tied head then shares the memory of the embedding.
        weight = torch.cat(weights) if len(weights) > 1 else weights[0]
        biases = [self.get(f"{name}.bias") for name in names if f"{name}.bias" in self._tensors]
        bias = torch.cat(biases) if biases else None
        return self._kernels.make_linear(weight, bias, out_dtype or self._dtype)


class LlamaLayer(nn.Module):
    """Attention and MLP with their norms; the residual stream is carried beside the input."""

    attention_norm: Tensor
    mlp_norm: Tensor

    def __init__(
        self, index: int, architecture: Architecture, kernels: KernelSet, weights: Weights
    ) -> None:
        """Take the tensors of layer ``index``."""
        super().__init__()
        prefix = f"model.layers.{index}"
        attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
        self.index = index
        self.architecture = architecture
        self.kernels = kernels
        self.qkv = weights.linear(
            f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"
        )
        self.out = weights.linear(f"{attention}.o_proj")
        self.gate_up = weights.linear(f"{mlp}.gate_proj", f"{mlp}.up_proj")
        self.down = weights.linear(f"{mlp}.down_proj")
        self.register_buffer("attention_norm", weights.norm(f"{prefix}.input_layernorm.weight"))
        self.register_buffer("mlp_norm", weights.norm(f"{prefix}.post_attention_layernorm.weight"))

    def attention(
        self, x_RE: Tensor, positions_R: Tensor, cos_sin_CD: Tensor, attend: Attend
    ) -> Tensor:
        """Return the attention output ``[R, E]`` of normed rows."""
        arch = self.architecture
        heads, kv_heads, dim = arch.num_heads, arch.num_kv_heads, arch.head_dim
        qkv = self.qkv(x_RE)
        q, k, v = qkv.split([heads * dim, kv_heads * dim, kv_heads * dim], dim=1)
        q_RHD, k_RKD = q.unflatten(1, (heads, dim)), k.unflatten(1, (kv_heads, dim))
        q_RHD, k_RKD = self.kernels.rope(q_RHD, k_RKD, positions_R, cos_sin_CD)
        attended = attend(self.index, q_RHD, k_RKD, v.unflatten(1, (kv_heads, dim)))
        output: Tensor = self.out(attended)
        return output

    def mlp(self, x_RE: Tensor) -> Tensor:
        """Return the MLP output ``[R, E]`` of normed rows."""
        output: Tensor = self.down(self.kernels.silu_mul(self.gate_up(x_RE)))
        return output


class Llama(nn.Module):
    """Token ids and positions in, logits of selected rows out."""

    embedding: Tensor
    final_norm: Tensor
    cos_sin: Tensor

    def __init__(
        self,
        architecture: Architecture,
        kernels: KernelSet,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        max_model_len: int,
    ) -> None:
        """Pack ``tensors`` (Hugging Face names) for the target of ``kernels``.

        ``dtype`` is that of weights and activations; logits are fp32 (fp64 for fp64).
        """
        super().__init__()
        self.architecture = architecture
        self.kernels = kernels
        self.dtype = dtype
        self.logits_dtype = torch.promote_types(dtype, torch.float32)
        weights = Weights(tensors, kernels, dtype)
        self.layers = nn.ModuleList(
            LlamaLayer(index, architecture, kernels, weights)
            for index in range(architecture.num_layers)
        )
        head = "model.embed_tokens" if architecture.tie_word_embeddings else "lm_head"
        self.head = weights.linear(head, out_dtype=self.logits_dtype)
        self.register_buffer("embedding", weights.get("model.embed_tokens.weight"))
        self.register_buffer("final_norm", weights.norm("model.norm.weight"))
        table = rope_table(architecture, max_model_len, dtype=self.logits_dtype)
        self.register_buffer("cos_sin", table)

    @property
    def weight_bytes(self) -> int:
        """Bytes of all packed weights and tables; what is shared counts once."""
        storages = {
            buffer.untyped_storage().data_ptr(): buffer.untyped_storage().nbytes()
            for buffer in self.buffers()
        }
        opaque: list[int] = [getattr(module, "opaque_bytes", 0) for module in self.modules()]
        return sum(storages.values()) + sum(opaque)

    def forward(
        self, ids_R: Tensor, positions_R: Tensor, logits_rows: Tensor, attend: Attend
    ) -> Tensor:
        """Return logits ``[len(logits_rows), V]``."""
        kernels, eps = self.kernels, self.architecture.rms_norm_eps
        layers = [cast("LlamaLayer", layer) for layer in self.layers]
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self.final_norm]
        residual = kernels.embed(ids_R, self.embedding)
        x = kernels.rms_norm(residual, layers[0].attention_norm, eps)
        for layer, next_norm in zip(layers, next_norms, strict=True):
            x = layer.attention(x, positions_R, self.cos_sin, attend)
            x, residual = kernels.add_rms_norm(x, residual, layer.mlp_norm, eps)
            x, residual = kernels.add_rms_norm(layer.mlp(x), residual, next_norm, eps)
        logits: Tensor = self.head(kernels.take_rows(x, logits_rows))
        return logits
