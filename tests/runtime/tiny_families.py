"""Tiny configurations of every family and option, as ``config.json`` would hold them."""

from __future__ import annotations

from typing import Any

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
THETA = {"rope_theta": 10000.0}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2],
    "long_factor": [1.0, 2.0, 4.0],
    "partial_rotary_factor": 0.75,
}
GEMMA = {
    "head_dim": 16,
    "sliding_window": 5,
    "query_pre_attn_scalar": 24,
    "num_hidden_layers": 4,
    "tie_word_embeddings": True,
}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 20}

CASES: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "llama-mha": {"model_type": "llama", "num_key_value_heads": 4},
    "llama-mqa": {"model_type": "llama", "num_key_value_heads": 1},
    "llama-k03-tied": {"model_type": "llama", "tie_word_embeddings": True},
    "llama-k07-head-dim": {"model_type": "llama", "hidden_size": 24, "head_dim": 8},
    "llama-k07-wide-heads": {"model_type": "llama", "head_dim": 16},
    "llama-k10-attention-bias": {"model_type": "llama", "attention_bias": True},
    "llama-k10-mlp-bias": {"model_type": "llama", "mlp_bias": True},
    "llama-odd-sizes": {
        "model_type": "llama",
        "vocab_size": 127,
        "intermediate_size": 50,
        "num_hidden_layers": 3,
    },
    "llama-gelu": {"model_type": "llama", "hidden_act": "gelu_pytorch_tanh"},
    "llama-k05-llama3": {"model_type": "llama", "rope_parameters": THETA | LLAMA3},
    "llama-linear": {
        "model_type": "llama",
        "rope_parameters": THETA | {"rope_type": "linear", "factor": 4.0},
    },
    "llama-yarn": {
        "model_type": "llama",
        "max_position_embeddings": 16,
        "rope_parameters": THETA
        | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    },
    "llama-dynamic": {
        "model_type": "llama",
        "max_position_embeddings": 16,
        "rope_parameters": THETA | {"rope_type": "dynamic", "factor": 4.0},
    },
    "llama-longrope": {
        "model_type": "llama",
        "rope_parameters": THETA
        | {
            "rope_type": "longrope",
            "factor": 4.0,
            "original_max_position_embeddings": 16,
            "short_factor": [1.0] * 4,
            "long_factor": [1.0, 2.0, 3.0, 4.0],
        },
    },
    "mistral": {"model_type": "mistral", "sliding_window": None},
    "mistral-k12-window": {"model_type": "mistral", "sliding_window": 4},
    "smollm3": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layers": [1, 0, 1, 0],
        "tie_word_embeddings": True,
    },
    "smollm3-interval": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
        "attention_bias": True,
    },
    "smollm3-window": {
        "model_type": "smollm3",
        "num_hidden_layers": 4,
        "no_rope_layer_interval": 2,
        "use_sliding_window": True,
        "sliding_window": 5,
    },
    "qwen2-k10-qkv-bias": {"model_type": "qwen2"},
    "qwen2-tied": {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen2-k12-window": {
        "model_type": "qwen2",
        "num_hidden_layers": 3,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
    },
    "qwen3": {"model_type": "qwen3", "head_dim": 16},
    "qwen3-attention-bias": {"model_type": "qwen3", "head_dim": 8, "attention_bias": True},
    "phi3": {"model_type": "phi3"},
    "phi3-window": {"model_type": "phi3", "sliding_window": 7},
    "phi3-longrope-short": {
        "model_type": "phi3",
        "max_position_embeddings": 256,
        "original_max_position_embeddings": 64,
        "rope_parameters": THETA | LONGROPE,
    },
    "phi3-longrope-long": {
        "model_type": "phi3",
        "original_max_position_embeddings": 16,
        "rope_parameters": THETA | LONGROPE,
    },
    "gemma2": {
        "model_type": "gemma2",
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        **GEMMA,
    },
    "gemma2-no-caps": {
        "model_type": "gemma2",
        "attn_logit_softcapping": None,
        "final_logit_softcapping": None,
        **GEMMA,
    },
    "gemma3": {"model_type": "gemma3_text", "sliding_window_pattern": 3, **GEMMA},
    "gemma3-scaled": {
        "model_type": "gemma3_text",
        **GEMMA,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "qwen3-moe": {"model_type": "qwen3_moe", "head_dim": 8, "norm_topk_prob": True, **EXPERTS},
    "qwen3-moe-raw-weights": {"model_type": "qwen3_moe", "head_dim": 8, **EXPERTS},
    "qwen3-moe-mixed": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "head_dim": 8,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
        **EXPERTS,
    },
    "qwen3-moe-window": {
        "model_type": "qwen3_moe",
        "head_dim": 8,
        "use_sliding_window": True,
        "sliding_window": 6,
        **EXPERTS,
    },
    "mixtral": {"model_type": "mixtral", "num_local_experts": 4},
    "mixtral-window": {"model_type": "mixtral", "num_local_experts": 4, "sliding_window": 6},
}
