"""A tiny model behind the offline interface: its settings, and how to make it write a text."""

from __future__ import annotations

from typing import Any

from noria.runtime.sampling_params import SamplingParams

TINY: dict[str, Any] = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "eos_token_id": 299,
    },
    "backend": "reference",
    "max_model_len": 96,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 32,
    "num_seqs_buckets": [4, 8],
    "num_batched_tokens_buckets": [32],
    "block_size": 4,
    "num_blocks": 200,
    "scheduling_policy": "priority",
    "sampler_features": [
        "greedy",
        "top_k_top_p",
        "penalties",
        "logit_bias",
        "structured_output",
        "logprobs",
        "prompt_logprobs",
    ],
}
GREEDY = SamplingParams(temperature=0, max_tokens=8)
EMOJI = "\U0001f600"


def script(text: str, **settings: Any) -> SamplingParams:
    """Settings that make any model write this text."""
    return SamplingParams(temperature=0, structured_output={"choice": [text]}, **settings)
