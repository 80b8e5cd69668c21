"""An independent dense model: the oracle of tiny engines."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.architecture import Architecture
from noria.runtime.random_draws import uniforms
from noria.runtime.sampling_params import SamplingParams


class DenseModel:
    """A Llama over the full token list: one request, no cache, no blocks, no padding, fp64."""

    def __init__(self, architecture: Architecture, tensors: dict[str, Tensor]) -> None:
        self.architecture = architecture
        self.tensors = {name: tensor.double() for name, tensor in tensors.items()}
        (rope,) = architecture.ropes
        angles = rope.frequencies(architecture.head_dim, architecture.max_len)
        self.frequencies = torch.tensor(angles, dtype=torch.float64)
        self._memory: dict[tuple[int, ...], Tensor] = {}

    def generate(self, prompt: Sequence[int], params: SamplingParams, num_tokens: int) -> list[int]:
        """Return the tokens that a request must get, by recomputing everything every time."""
        token_ids = list(prompt)
        for _ in range(num_tokens):
            token_ids.append(self._draw(self.logits(token_ids)[-1], params, len(token_ids)))
        return token_ids[len(prompt) :]

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Return logits of every position, ``[T, V]``."""
        key = tuple(token_ids)
        if key not in self._memory:
            self._memory[key] = self._forward(torch.tensor(key))
        return self._memory[key]

    def _forward(self, ids: Tensor) -> Tensor:
        x = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(self.architecture.num_layers):
            prefix = f"model.layers.{layer}"
            window = self.architecture.layers[layer].window
            x = x + self._attention(self._norm(x, f"{prefix}.input_layernorm"), prefix, window)
            y = self._norm(x, f"{prefix}.post_attention_layernorm")
            gate = torch.nn.functional.silu(self._linear(y, f"{prefix}.mlp.gate_proj"))
            up = self._linear(y, f"{prefix}.mlp.up_proj")
            x = x + self._linear(gate * up, f"{prefix}.mlp.down_proj")
        head = "model.embed_tokens" if self.architecture.tie_word_embeddings else "lm_head"
        return self._linear(self._norm(x, "model.norm"), head)

    def _attention(self, x: Tensor, prefix: str, window: int | None) -> Tensor:
        arch = self.architecture
        q, k, v = (
            self._linear(x, f"{prefix}.self_attn.{name}_proj").unflatten(1, (-1, arch.head_dim))
            for name in "qkv"
        )
        group = arch.num_heads // arch.num_kv_heads
        k = self._rotate(k).repeat_interleave(group, dim=1)
        v = v.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,khd->hqk", self._rotate(q), k) * arch.head_dim**-0.5
        causal = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        causal = causal.triu(1 - (window or len(x)))
        weights = scores.masked_fill(~causal, -torch.inf).softmax(-1)
        attended = torch.einsum("hqk,khd->qhd", weights, v).flatten(1)
        return self._linear(attended, f"{prefix}.self_attn.o_proj")

    def _rotate(self, x: Tensor) -> Tensor:
        angles = torch.arange(len(x), dtype=torch.float64)[:, None] * self.frequencies
        cos, sin = angles.cos()[:, None], angles.sin()[:, None]
        low, high = x.chunk(2, dim=-1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + self.architecture.rms_norm_eps).rsqrt()
        return x * scale * self.tensors[f"{name}.weight"]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return torch.nn.functional.linear(
            x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias")
        )

    def _draw(self, logits: Tensor, params: SamplingParams, position: int) -> int:
        row = logits[None]
        if params.is_greedy:
            return int(ReferenceKernels.greedy(row))
        uniform = torch.from_numpy(uniforms([params.seed], [position]))
        top_k = torch.tensor([max(params.top_k or 0, 0)], dtype=torch.int32)
        temperature = torch.tensor([params.temperature], dtype=torch.float32)
        top_p = torch.tensor([params.top_p], dtype=torch.float32)
        min_p = torch.zeros(1)
        return int(ReferenceKernels.sample(row, temperature, top_k, top_p, min_p, uniform))
