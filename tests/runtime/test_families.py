"""The Llama family against Hugging Face transformers, on tiny random models in fp32."""

from __future__ import annotations

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.kernels.reference import ReferenceKernels
from noria.runtime.models.families import read_architecture
from noria.runtime.sampling_params import SamplingParams

transformers = pytest.importorskip("transformers")

BASE = {
    "model_type": "llama",
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
VARIANTS = {
    "gqa": {},
    "mha": {"num_key_value_heads": 4},
    "mqa": {"num_key_value_heads": 1},
    "untied": {"tie_word_embeddings": False},
    "k07-head-dim": {"hidden_size": 24, "head_dim": 8},
    "k07-wide-heads": {"hidden_size": 32, "head_dim": 16},
    "k10-attention-bias": {"attention_bias": True},
    "k10-mlp-bias": {"mlp_bias": True},
    "theta": {"rope_theta": 100000.0},
    "k05-llama3": {"rope_theta": 10000.0, "rope_scaling": LLAMA3_ROPE},
    "odd-sizes": {"vocab_size": 127, "intermediate_size": 50, "num_hidden_layers": 3},
}
PROMPTS = [[1 + i, 2 * i + 5, 7] + [i + 3] * (5 * i) for i in range(6)]
TARGETS = {"reference": ReferenceKernels, "cpu": CpuKernels}


def hugging_face(config):
    """Return a random transformers model in fp32 and its state dict."""
    torch.manual_seed(0)
    keys = {key: value for key, value in config.items() if key != "model_type"}
    keys.setdefault("tie_word_embeddings", True)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**keys)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            is_norm = "norm" in name
            parameter.copy_(1 + 0.1 * noise if is_norm else noise * 0.15)
    tensors = dict(model.state_dict())
    if keys["tie_word_embeddings"]:
        tensors.pop("lm_head.weight", None)
    return model, tensors


def generate_with_logits(tiny, prompts, params):
    """Return tokens and, per request, the logits that chose each of them."""
    recorded = {}
    inner = tiny.runner.run_graph

    def run_graph(graph, output):
        inner(graph, output)
        for row, scheduled in enumerate(output.requests):
            recorded.setdefault(scheduled.request_id, []).append(graph.logits_RV[row].clone())

    tiny.runner.run_graph = run_graph
    requests = [tiny.engine.submit(prompt, params) for prompt in prompts]
    tiny.run()
    tokens = [request.output_token_ids for request in requests]
    return tokens, [torch.stack(recorded[request.request_id]) for request in requests]


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_logits_and_greedy_tokens_equal_transformers(make_engine, variant, target):
    config = BASE | variant
    model, tensors = hugging_face(config)
    architecture = read_architecture({"tie_word_embeddings": True} | config)
    tiny = make_engine(
        kernels=target(), dtype=torch.float32, architecture=architecture, tensors=tensors
    )

    tokens, logits = generate_with_logits(
        tiny, PROMPTS, SamplingParams(temperature=0, max_tokens=12)
    )

    for prompt, generated, ours in zip(PROMPTS, tokens, logits, strict=True):
        with torch.no_grad():
            theirs = model(torch.tensor([prompt + generated])).logits[0]
        theirs = theirs[len(prompt) - 1 : -1]
        assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()
        assert generated == theirs.argmax(-1).tolist()


def test_a_changed_weight_would_be_noticed(make_engine):
    model, tensors = hugging_face(BASE)
    tensors["model.layers.1.mlp.down_proj.weight"] = (
        tensors["model.layers.1.mlp.down_proj.weight"].clone().mul_(1.001)
    )
    architecture = read_architecture({"tie_word_embeddings": True} | BASE)
    tiny = make_engine(dtype=torch.float32, architecture=architecture, tensors=tensors)

    _, logits = generate_with_logits(tiny, PROMPTS[:1], SamplingParams(temperature=0, max_tokens=1))

    with torch.no_grad():
        theirs = model(torch.tensor([PROMPTS[0]])).logits[0, -1]
    assert (logits[0][0] - theirs).abs().max() > 1e-5 * theirs.abs().max()
