"""What GGUF calls the parts of each architecture, and how it stores them.

Two conventions differ from Hugging Face's: rows of queries and keys are stored in pairs for some
architectures, and norm weights of Gemma are stored with their offset.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from .gguf_metadata import GgufMetadata

TOP_NAMES = MappingProxyType(
    {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "output": "lm_head",
    }
)
ATTENTION_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
}
HEAD_NORM_NAMES = {"attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm"}
LAYER_NAMES = {
    **ATTENTION_NAMES,
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA_NAMES = {
    **LAYER_NAMES,
    **HEAD_NORM_NAMES,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
READ_KEYS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "rope.freq_base",
    "rope.dimension_count",
    "rope.scaling.type",
    "rope.scaling.factor",
    "vocab_size",
)
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "rope.scale_linear": (1.0,),
        "expert_count": (0,),
        "expert_used_count": (0,),
        "attention.causal": (True,),
        "attention.sliding_window": (0,),
    }
)
"""Values that change nothing, where a family does not read the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufFamily:
    """One architecture of GGUF files.

    Attributes:
        model_type: of ``config.json``; ``class_name`` is that of the model.
        layer_names: names of a layer's tensors; ``{}`` is the number of an expert, of which one
            tensor holds all.
        read: the keys of ``config.json`` that only this family has.
        keys: the metadata that ``read`` reads.
        has_paired_rows: rows of queries and keys are in pairs (0, D/2, 1, D/2 + 1, ...).
        norm_offset: what the stored norm weights hold more than those of a checkpoint.
    """

    model_type: str
    class_name: str
    layer_names: Mapping[str, str]
    read: Callable[[GgufMetadata], dict[str, object]] = lambda metadata: {}
    keys: tuple[str, ...] = ()
    has_paired_rows: bool = False
    norm_offset: float = 0.0
    extra_tensors: tuple[str, ...] = field(default=())
    """Tensors that are read as configuration."""


def find_family(metadata: GgufMetadata) -> GgufFamily:
    """Return the family of a file.

    Raises:
        ModelError: the architecture is not supported; lists those that are.
    """
    name = metadata.architecture
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        supported = ", ".join(FAMILIES)
        raise metadata.error(f"architecture {name!r} is not supported (supported: {supported})")
    return MIXTRAL if family is LLAMA and metadata.has("expert_count") else family


def _window(metadata: GgufMetadata) -> dict[str, object]:
    has_window = metadata.has("attention.sliding_window")
    return {"sliding_window": metadata.size("attention.sliding_window") if has_window else None}


def _experts(metadata: GgufMetadata) -> dict[str, object]:
    return {
        "num_local_experts": metadata.size("expert_count"),
        "num_experts_per_tok": metadata.size("expert_used_count"),
    }


def _qwen3_moe(metadata: GgufMetadata) -> dict[str, object]:
    inner = metadata.size("expert_feed_forward_length")
    # Files do not say it: every runtime of them scales the weights of this architecture to 1.
    return {**_experts(metadata), "moe_intermediate_size": inner, "norm_topk_prob": True}


def _gemma(metadata: GgufMetadata) -> dict[str, object]:
    caps = {
        f"{name}_logit_softcapping": metadata.number(key) if metadata.has(key) else None
        for name, key in (("attn", "attn_logit_softcapping"), ("final", "final_logit_softcapping"))
    }
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": _query_scalar(metadata),
        "sliding_window": metadata.size("attention.sliding_window"),
        **caps,
    }


def _query_scalar(metadata: GgufMetadata) -> int:
    """Return what scores are divided by the root of: files leave it to the number of layers."""
    if metadata.size("block_count") in GEMMA_27B_LAYERS:
        return metadata.size("embedding_length") // metadata.size("attention.head_count")
    return metadata.head_dim()


def _gemma3(metadata: GgufMetadata) -> dict[str, object]:
    return {**_gemma(metadata), "rope_local_base_freq": metadata.number("rope.freq_base_swa", 1e4)}


GEMMA_27B_LAYERS = (46, 62)
"""Of Gemma 2 27B and Gemma 3 27B, which alone scale by hidden_size / heads."""
EXPERT_NAMES = {
    "ffn_gate_exps": "mlp.experts.{}.gate_proj",
    "ffn_up_exps": "mlp.experts.{}.up_proj",
    "ffn_down_exps": "mlp.experts.{}.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
MIXTRAL_NAMES = {
    "ffn_gate_exps": "block_sparse_moe.experts.{}.w1",
    "ffn_up_exps": "block_sparse_moe.experts.{}.w3",
    "ffn_down_exps": "block_sparse_moe.experts.{}.w2",
    "ffn_gate_inp": "block_sparse_moe.gate",
}
LLAMA = GgufFamily(
    model_type="llama",
    class_name="LlamaForCausalLM",
    layer_names=LAYER_NAMES,
    has_paired_rows=True,
    extra_tensors=("rope_freqs.weight",),
)
MIXTRAL = GgufFamily(
    model_type="mixtral",
    class_name="MixtralForCausalLM",
    layer_names={**LAYER_NAMES, **MIXTRAL_NAMES},
    read=lambda metadata: {**_experts(metadata), "sliding_window": None},
    keys=("expert_count", "expert_used_count"),
    has_paired_rows=True,
)
GEMMA_KEYS = (
    "attention.sliding_window",
    "attn_logit_softcapping",
    "final_logit_softcapping",
)
FAMILIES: Mapping[str, GgufFamily] = MappingProxyType(
    {
        "llama": LLAMA,
        "qwen2": GgufFamily(
            model_type="qwen2", class_name="Qwen2ForCausalLM", layer_names=LAYER_NAMES
        ),
        "qwen3": GgufFamily(
            model_type="qwen3",
            class_name="Qwen3ForCausalLM",
            layer_names={**LAYER_NAMES, **HEAD_NORM_NAMES},
        ),
        "qwen3moe": GgufFamily(
            model_type="qwen3_moe",
            class_name="Qwen3MoeForCausalLM",
            layer_names={**LAYER_NAMES, **HEAD_NORM_NAMES, **EXPERT_NAMES},
            read=_qwen3_moe,
            keys=("expert_count", "expert_used_count", "expert_feed_forward_length"),
        ),
        "phi3": GgufFamily(
            model_type="phi3",
            class_name="Phi3ForCausalLM",
            layer_names={
                **ATTENTION_NAMES,
                "attn_qkv": "self_attn.qkv_proj",
                "ffn_norm": "post_attention_layernorm",
                "ffn_up": "mlp.gate_up_proj",
                "ffn_down": "mlp.down_proj",
            },
            read=_window,
            keys=(
                "attention.sliding_window",
                "rope.scaling.original_context_length",
                "rope.scaling.attn_factor",
            ),
            extra_tensors=("rope_factors_long.weight", "rope_factors_short.weight"),
        ),
        "gemma2": GgufFamily(
            model_type="gemma2",
            class_name="Gemma2ForCausalLM",
            layer_names=GEMMA_NAMES,
            read=_gemma,
            keys=GEMMA_KEYS,
            norm_offset=1.0,
        ),
        "gemma3": GgufFamily(
            model_type="gemma3_text",
            class_name="Gemma3ForCausalLM",
            layer_names=GEMMA_NAMES,
            read=_gemma3,
            keys=(*GEMMA_KEYS, "rope.freq_base_swa"),
            norm_offset=1.0,
        ),
    }
)
