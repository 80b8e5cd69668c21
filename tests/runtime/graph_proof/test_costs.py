"""Bytes and FLOPs of graphs are those that formulas give which know nothing of graphs."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import pytest
import torch
from torch import Tensor, nn

from noria.bucketing import Bucket, DecodeBucket
from noria.kernels.neuron.target import NeuronKernels
from noria.runtime.assembly import limits_of
from noria.runtime.config import Config, parse_config
from noria.runtime.graph_proof.capture import DEVICE, capture
from noria.runtime.graph_proof.configuration import ConfigurationProof, prove_configuration
from noria.runtime.graph_proof.costs import costs_of
from noria.runtime.models.architecture import Architecture, expected_tensors
from noria.runtime.models.sizes import read_sizes_of
from noria.runtime.planning import bucket_plan

BLOCK_SIZE, NUM_BLOCKS = 16, 64
TINY: dict[str, object] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": 0,
}
SMOLLM2_135M: dict[str, object] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "tie_word_embeddings": True,
    "eos_token_id": 2,
}


def config_of(model: Mapping[str, object], sizes: list[int], seqs: list[int]) -> Config:
    return parse_config(
        {
            "model": dict(model),
            "backend": "neuron",
            "dtype": "bfloat16",
            "max_model_len": sizes[-1],
            "max_num_batched_tokens": sizes[-1],
            "max_num_seqs": seqs[-1],
            "max_num_prefill_seqs": 2,
            "num_batched_tokens_buckets": sizes,
            "num_seqs_buckets": seqs,
            "block_size": BLOCK_SIZE,
            "num_blocks": NUM_BLOCKS,
        }
    )


def buckets_of(config: Config) -> Mapping[str, Bucket]:
    plan = bucket_plan(config, limits_of(config, NeuronKernels()))
    return {bucket.label: bucket for bucket in plan.buckets}


def expected_flops(bucket: Bucket, config: Config, model: Architecture) -> int:
    """Count two per weight of a linear layer and row, and two per key or value that is seen."""
    shapes = expected_tensors(model)
    layers = [shape for name, shape in shapes.items() if "_proj" in name]
    rows = bucket.num_rows
    logits_rows = rows if isinstance(bucket, DecodeBucket) else config.max_num_prefill_seqs
    linear = 2 * rows * sum(map(prod, layers))
    head = 2 * logits_rows * model.vocab_size * model.hidden_size
    # Whole folds of 128 blocks per request, whatever the context.
    table = -(-bucket.context_len // (128 * BLOCK_SIZE)) * 128 * BLOCK_SIZE
    attention = 4 * rows * model.num_heads * model.head_dim * table * model.num_layers
    return linear + head + attention


def expected_weight_bytes(config: Config, model: Architecture) -> int:
    """Count bf16 matrices, fp32 norms, the head in fp32, and the table of the rope."""
    shapes = expected_tensors(model)
    linear = sum(prod(shape) for name, shape in shapes.items() if "_proj" in name)
    norms = sum(prod(shape) for name, shape in shapes.items() if "norm" in name)
    embedding = model.vocab_size * model.hidden_size
    rope = config.max_model_len * model.head_dim
    return 2 * (linear + embedding) + 4 * (norms + embedding + rope)


def check_costs(proof: ConfigurationProof) -> None:
    """Compare the graphs of a model with its formulas."""
    config = proof.config
    model = read_sizes_of(config.model)
    buckets = buckets_of(config)
    token_bytes = 2 * 2 * model.num_layers * model.num_kv_heads * model.head_dim
    checked = 0
    for graph in proof.graphs:
        if graph.name not in buckets:
            continue
        bucket, checked = buckets[graph.name], checked + 1
        logits_rows = bucket.num_rows if isinstance(bucket, DecodeBucket) else 2
        assert graph.costs.flops == expected_flops(bucket, config, model)
        assert graph.costs.weight_bytes == expected_weight_bytes(config, model)
        assert graph.costs.cache_bytes == NUM_BLOCKS * BLOCK_SIZE * token_bytes
        assert graph.costs.output_bytes == 4 * logits_rows * model.vocab_size
    assert checked == len(buckets)


def test_costs_of_a_tiny_model() -> None:
    config = config_of(TINY, [128, 256], [1, 4])

    check_costs(prove_configuration(config, lambda *_: None))


def test_costs_of_smollm2_135m() -> None:
    config = config_of(SMOLLM2_135M, [128], [2])

    check_costs(prove_configuration(config, lambda *_: None))


def test_inputs_are_what_a_step_fills() -> None:
    proof = prove_configuration(config_of(TINY, [256], [4]), lambda *_: None)
    costs = {graph.name: graph.costs for graph in proof.graphs}

    # ids, positions and slots of 4 rows; context, query lengths and logits positions; tables
    assert costs["decode_s4_c256"].input_bytes == 4 * (3 * 4 + 3 * 4 + 4 * 128)


class Chain(nn.Module):
    """Matrix products one after the other: two results are alive at any time."""

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(5):
            x = (x @ x).view(4, 4).t()
        return x.contiguous()


class Fan(nn.Module):
    """Results that all wait for the last."""

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = x + 1, x + 2, x + 3
        return a + b + c


@pytest.mark.parametrize(("module", "num_alive"), [(Chain(), 2), (Fan(), 4)], ids=["chain", "fan"])
def test_intermediates_are_what_is_alive_at_once(module: nn.Module, num_alive: int) -> None:
    captured = capture("toy", module, [torch.zeros(4, 4, device=DEVICE)])

    assert costs_of(captured).intermediate_bytes == num_alive * 4 * 16


def test_products_are_counted_with_the_formula_of_two_per_multiplication() -> None:
    captured = capture("toy", Chain(), [torch.zeros(4, 4, device=DEVICE)])

    assert costs_of(captured).flops == 5 * 2 * 4**3
