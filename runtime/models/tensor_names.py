"""The names under which a checkpoint holds the tensors of a decoder."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorNames:
    """Module names, without ``.weight`` and ``.bias``; those of a layer lack its prefix.

    ``qkv`` names three linear layers or the one that holds their rows in this order, ``gate_up``
    two or one. The defaults are those of Llama.
    """

    embedding: str = "model.embed_tokens"
    final_norm: str = "model.norm"
    head: str = "lm_head"
    layers: str = "model.layers"
    attention_norm: str = "input_layernorm"
    attention_output_norm: str = "post_attention_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    mlp_output_norm: str = "post_feedforward_layernorm"
    qkv: tuple[str, ...] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    q_norm: str = "self_attn.q_norm"
    k_norm: str = "self_attn.k_norm"
    out: str = "self_attn.o_proj"
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    down: str = "mlp.down_proj"
    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    expert_parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")

    def layer(self, index: int) -> str:
        """Return the prefix of a layer."""
        return f"{self.layers}.{index}"

    def expert(self, index: int) -> tuple[str, str, str]:
        """Return the gate, up and down projections of an expert."""
        gate, up, down = (f"{self.experts}.{index}.{part}" for part in self.expert_parts)
        return gate, up, down


LLAMA_NAMES = TensorNames()
