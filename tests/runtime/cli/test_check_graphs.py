"""``noria check --graphs``: what it prints, and its exit status."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from torch import Tensor

from noria.kernels.neuron.target import NeuronKernels

Run = Callable[..., Result]
TEXT = """\
model: {vocab_size: 64, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1,
        num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 128,
        eos_token_id: 0}
backend: neuron
dtype: float32
max_model_len: 128
max_num_seqs: 1
max_num_batched_tokens: 128
num_batched_tokens_buckets: [128]
num_seqs_buckets: [1]
num_blocks: 16
sampler_features: [greedy]
sampling: {temperature: 0}
"""


@pytest.fixture
def neuron_config(tmp_path: Path) -> Path:
    path = tmp_path / "neuron.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def broken_greedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def greedy(logits_RV: Tensor) -> Tensor:
        return logits_RV.double().argmax(dim=1).int()

    monkeypatch.setattr(NeuronKernels, "greedy", staticmethod(greedy))


def test_a_proved_configuration_has_a_row_per_graph_and_counts_operators(
    run: Run, neuron_config: Path
) -> None:
    result = run("check", neuron_config, "--graphs")

    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[0].startswith(f"OK {neuron_config}: ")
    assert lines[2].split() == [
        *("graph", "nodes", "operators", "weights", "caches", "inputs", "outputs"),
        *("intermediates", "GFLOP", "violations"),
    ]
    names = [line.split()[0] for line in lines[3:7]]
    assert sorted(names) == [
        *("copy_blocks_g0_s1", "decode_s1_c128", "prefill_t128_c128", "sampler_r1_greedy"),
    ]
    assert [line.split()[-1] for line in lines[3:7]] == ["0"] * 4
    assert "4 graphs captured as backend: neuron, target: trn2; no weights" in lines
    assert "operators: 4 kernel" in lines[-2]
    assert " unverified" in lines[-1]
    assert "capture: 4/4 done" in result.stderr


def test_a_violation_is_named_with_its_line_and_makes_the_status_1(
    run: Run, neuron_config: Path, broken_greedy: None
) -> None:
    result = run("check", neuron_config, "--graphs")

    (line,) = [line for line in result.stdout.splitlines() if "test_check_graphs.py:" in line]
    assert result.exit_code == 1
    assert "aten._to_copy.default: float64 (_to_copy of sampler_r1_greedy)" in line
    assert "\nno-float64: No float64 [" in result.stdout
    assert "keep all" not in result.stdout


def test_json_has_the_whole_proof(run: Run, neuron_config: Path, broken_greedy: None) -> None:
    result = run("check", neuron_config, "--graphs", "--json")

    found = json.loads(result.stdout)
    proof = found["proof"]
    broken = [one for graph in proof["graphs"] for one in graph["violations"]]
    assert (result.exit_code, found["ok"], proof["proved"]) == (1, True, False)
    assert [(one["rule"], one["graph"]) for one in broken] == [("no-float64", "sampler_r1_greedy")]
    assert {rule["id"] for rule in proof["rules"]} >= {"one-graph", "no-float64"}
    assert proof["operators"]["noria_neuron.kv_write.default"] == ["kernel"]
    assert sum(proof["operator_counts"].values()) == len(proof["operators"])
    assert proof["num_blocks"] == [16]


def test_another_backend_is_named(run: Run, neuron_config: Path) -> None:
    text = TEXT.replace("backend: neuron", "backend: cpu")
    neuron_config.write_text(text, encoding="utf-8")

    result = run("check", neuron_config, "--graphs")

    assert result.exit_code == 0
    assert "target: trn2; no weights (the configuration names backend: cpu)\n" in result.stdout


def test_shapes_that_the_backend_refuses_are_a_mistake(run: Run, neuron_config: Path) -> None:
    text = TEXT.replace("backend: neuron", "backend: cpu").replace("[128]", "[64, 128]")
    neuron_config.write_text(text, encoding="utf-8")

    result = run("check", neuron_config, "--graphs")

    assert result.exit_code == 2
    assert "as backend: neuron, target: trn2: " in result.stderr
    assert "num_batched_tokens_buckets: lists 64; must be a multiple of 128" in result.stderr
