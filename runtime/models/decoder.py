"""A decoder of any family, built from a target's kernels and the parts that its layers name.

The model never asks which family, target or phase it runs in: parts are chosen when it is built,
kernels come from the KernelSet it was built with, attention from the phase's ``Step``. Weights
are packed once, here, and shared by all graphs. Shape letters as in ``kernels/kernel_set.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from ...kernels.contract import AttentionSpec
from ...kernels.kernel_set import KernelSet
from .architecture import Architecture
from .decoder_parts import Attention, Builder, SoftCap, Step, make_mlp, make_output_norm
from .kv_scales import KVScales
from .rope import rope_table
from .weights import Weights


class DecoderLayer(nn.Module):
    """Attention and MLP with their norms; the residual stream is carried beside the input.

    The norm before a block is fused with the sum that precedes it; what a family puts between a
    block and that sum is a part of the block.
    """

    attention_norm: Tensor
    mlp_norm: Tensor

    def __init__(self, index: int, builder: Builder) -> None:
        """Take the tensors of layer ``index``."""
        super().__init__()
        arch, weights = builder.architecture, builder.weights
        names, prefix = arch.names, arch.names.layer(index)
        self.kernels, self.eps = builder.kernels, arch.rms_norm_eps
        self.attention = Attention(index, builder)
        self.attention_output = make_output_norm(f"{prefix}.{names.attention_output_norm}", builder)
        self.mlp = make_mlp(index, builder)
        self.mlp_output = make_output_norm(f"{prefix}.{names.mlp_output_norm}", builder)
        self.register_buffer("attention_norm", weights.norm(f"{prefix}.{names.attention_norm}"))
        self.register_buffer("mlp_norm", weights.norm(f"{prefix}.{names.mlp_norm}"))

    def forward(
        self, x_RE: Tensor, residual_RE: Tensor, positions_R: Tensor, next_norm: Tensor, step: Step
    ) -> tuple[Tensor, Tensor]:
        """Return the input of the next layer, normed by ``next_norm``, and the residual."""
        add_rms_norm = self.kernels.add_rms_norm
        x = self.attention_output(self.attention(x_RE, positions_R, step))
        x, residual = add_rms_norm(x, residual_RE, self.mlp_norm, self.eps)
        x = self.mlp_output(self.mlp(x, step))
        return add_rms_norm(x, residual, next_norm, self.eps)


class Decoder(nn.Module):
    """Token ids and positions in, logits of selected rows out."""

    embedding: Tensor
    final_norm: Tensor

    def __init__(
        self,
        architecture: Architecture,
        kernels: KernelSet,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype,
        max_model_len: int,
        kv_scales: Sequence[KVScales] | None = None,
    ) -> None:
        """Pack ``tensors`` (names of the checkpoint) for the target of ``kernels``.

        ``dtype`` is that of weights and activations; logits are fp32 (fp64 for fp64).
        ``kv_scales`` are those of each layer's cache; None is 1 for all.
        """
        super().__init__()
        self.architecture = architecture
        self.kernels = kernels
        self.dtype = dtype
        self.logits_dtype = torch.promote_types(dtype, torch.float32)
        self.attention_specs = attention_specs(architecture, kv_scales)
        weights = Weights(tensors, kernels, dtype, norm_offset=architecture.norm_offset)
        names = architecture.names
        tables = {
            rope: rope_table(rope, architecture.head_dim, max_model_len, dtype=self.logits_dtype)
            for rope in architecture.ropes
        }
        builder = Builder(architecture, kernels, weights, tables)
        self.layers = nn.ModuleList(
            DecoderLayer(index, builder) for index in range(architecture.num_layers)
        )
        head = names.embedding if architecture.tie_word_embeddings else names.head
        self.head = weights.linear(head, out_dtype=self.logits_dtype)
        self.register_buffer("embedding", weights.get(f"{names.embedding}.weight"))
        self.register_buffer("final_norm", weights.norm(names.final_norm))
        # As a model of that dtype would hold it: sqrt(hidden_size) in bf16 is another number.
        self.embedding_scale = torch.tensor(architecture.embedding_scale, dtype=dtype).item()
        cap = architecture.logits_softcap
        self.logits_cap = nn.Identity() if cap is None else SoftCap(cap, kernels)

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
        self, ids_R: Tensor, positions_R: Tensor, logits_rows: Tensor, step: Step
    ) -> Tensor:
        """Return logits ``[len(logits_rows), V]``."""
        kernels, eps = self.kernels, self.architecture.rms_norm_eps
        layers = [cast("DecoderLayer", layer) for layer in self.layers]
        next_norms = [*(layer.attention_norm for layer in layers[1:]), self.final_norm]
        residual = kernels.embed(ids_R, self.embedding, self.embedding_scale)
        x = kernels.rms_norm(residual, layers[0].attention_norm, eps)
        for layer, next_norm in zip(layers, next_norms, strict=True):
            x, residual = layer(x, residual, positions_R, next_norm, step)
        logits: Tensor = self.logits_cap(self.head(kernels.take_rows(x, logits_rows)))
        return logits


def attention_specs(
    architecture: Architecture, kv_scales: Sequence[KVScales] | None = None
) -> tuple[AttentionSpec, ...]:
    """Return what is fixed about the attention of each layer."""
    scale = architecture.attention_scale
    scale = architecture.head_dim**-0.5 if scale is None else scale
    cache_scales = kv_scales or [KVScales()] * architecture.num_layers
    return tuple(
        AttentionSpec(
            scale=scale,
            softcap=architecture.attention_softcap,
            window=kind.window,
            k_scale=scales.k,
            v_scale=scales.v,
        )
        for kind, scales in zip(architecture.layers, cache_scales, strict=True)
    )
