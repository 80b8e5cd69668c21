"""Roofline arithmetic against numbers worked out by hand and measured elsewhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from noria.runtime.bench.roofline import ModelCost, job_flop, model_cost, roofs, stored_as
from noria.runtime.bench.workload import Workload
from noria.runtime.models.architecture import Architecture, Experts, LayerKind

SMOLLM2_135M = Architecture(
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    layers=(LayerKind(),) * 30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    tie_word_embeddings=True,
    max_position_embeddings=8192,
)
DEFAULT = Workload(vocab_size=49152)


def test_a_tied_embedding_counts_once_as_the_head() -> None:
    cost = model_cost(SMOLLM2_135M)

    assert cost.num_head_params == 49152 * 576
    assert cost.num_step_params == 134_515_008


def test_an_embedding_that_is_only_looked_up_costs_nothing() -> None:
    untied = replace(SMOLLM2_135M, tie_word_embeddings=False)

    assert model_cost(untied) == model_cost(SMOLLM2_135M)


def test_a_token_multiplies_with_its_experts_and_a_step_reads_all() -> None:
    """Two of eight experts of 3 * 576 * 100 parameters each, in 30 layers, and the router."""
    layers = (LayerKind(experts=Experts(8, 2, 100, True)),) * 30
    dense, routed = SMOLLM2_135M, replace(SMOLLM2_135M, layers=layers)

    cost = model_cost(routed)

    mlps = 30 * 3 * 576 * 1536
    router = 30 * 8 * 576
    expert = 30 * 3 * 576 * 100
    assert cost.num_body_params == model_cost(dense).num_body_params - mlps + router + 2 * expert
    assert cost.num_step_params == model_cost(dense).num_step_params - mlps + router + 8 * expert


def test_the_default_job_of_smollm2_is_435_gflop_of_prompts_and_551_of_new_tokens() -> None:
    cost = model_cost(SMOLLM2_135M)

    prompts = 2 * cost.num_body_params * 32 * 64
    total = job_flop(cost, DEFAULT)

    assert round(prompts / 1e9) == 435
    assert round((total - prompts) / 1e9) == 551
    assert round(total / 1e9) == 986


@pytest.mark.parametrize(("gflop_s", "tok_s"), [(196, 407), (414, 860)], ids=["fp32", "bf16"])
def test_compute_roof_of_the_default_job(gflop_s: float, tok_s: float) -> None:
    bounds = roofs(
        model_cost(SMOLLM2_135M),
        DEFAULT,
        flop_s=gflop_s * 1e9,
        read_bytes_s=55.4e9,
        stored=stored_as("float32"),
    )

    assert bounds.compute == pytest.approx(tok_s, rel=0.001)
    assert bounds.lowest == bounds.compute


@pytest.mark.parametrize(("weights", "tok_s"), [("float32", 103), ("bfloat16", 206)])
def test_one_sequence_is_bound_by_reading_the_weights_once_per_token(
    weights: str, tok_s: float
) -> None:
    one = Workload(num_prompts=1, vocab_size=49152)

    bounds = roofs(
        model_cost(SMOLLM2_135M), one, flop_s=414e9, read_bytes_s=55.4e9, stored=stored_as(weights)
    )

    assert bounds.memory == pytest.approx(tok_s, rel=0.003)
    assert bounds.lowest == bounds.memory


def test_roofs_of_round_numbers() -> None:
    workload = Workload(num_prompts=2, prompt_len=3, new_tokens=5, vocab_size=10)
    cost = ModelCost(num_body_params=100, num_head_params=20)

    bounds = roofs(cost, workload, flop_s=1800.0, read_bytes_s=960.0, stored=stored_as("float32"))

    assert job_flop(cost, workload) == 2 * (100 * 16 + 20 * 10) == 3600
    assert bounds.compute == 10 / 2
    assert bounds.memory == 10 / (5 * 120 * 4 / 960)
