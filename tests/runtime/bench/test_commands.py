"""The bench commands as a whole, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from noria.runtime.bench import machine
from noria.runtime.bench.commands import (
    OfflineOptions,
    bench_offline,
    bench_peers,
)
from noria.runtime.bench.peers import PeerOptions
from noria.runtime.errors import ConfigError
from noria.runtime.models.locations import model_name

CONFIG = """
model:
  model_type: llama
  vocab_size: 64
  hidden_size: 16
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 2
  num_key_value_heads: 1
  tie_word_embeddings: true
backend: reference
max_model_len: 32
max_num_seqs: 4
max_num_batched_tokens: 32
num_batched_tokens_buckets: [32]
num_seqs_buckets: [4]
num_threads: 1
"""
SMALL = OfflineOptions(num_prompts=3, prompt_len=8, new_tokens=8, num_rounds=2)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file; measuring the machine takes no time."""
    monkeypatch.setattr(machine, "READ_BYTES", 4096)
    monkeypatch.setattr(machine, "MATRIX_SIZE", 8)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def test_noria_alone_is_measured_in_the_dtype_of_its_configuration(config: Path) -> None:
    report = bench_offline(config, SMALL)

    (row,) = report.rows
    assert row.problem is None
    assert (row.engine, row.weights, row.activations) == ("noria", "float32", "float32")
    assert len(row.seconds) == 2
    assert row.noria_ratio == 1.0
    assert report.machine.num_threads == 1
    assert report.model == "inline model"
    assert report.notes == ()


def test_a_limit_that_other_engines_do_not_have_is_said(config: Path) -> None:
    options = OfflineOptions(num_prompts=5, prompt_len=8, new_tokens=8, num_rounds=1)

    assert bench_offline(config, options).notes == (
        "max_num_seqs: Noria runs 4 of 5 prompts at once, as configured; other engines may run "
        "more.",
    )


def test_engines_that_cannot_run_are_listed_beside_noria(config: Path) -> None:
    options = OfflineOptions(
        num_prompts=3, prompt_len=8, new_tokens=8, num_rounds=1, dtypes=("float32",)
    )
    peers = PeerOptions(engines=("vllm",), pythons={"vllm": str(config.parent / "none")})

    noria, other = bench_peers(config, options, peers=peers).rows

    assert noria.problem is None
    assert noria.rate is not None
    assert other.rate is None
    assert "does not run" in str(other.problem)


def test_a_workload_beyond_max_model_len_is_refused_before_anything_starts(config: Path) -> None:
    with pytest.raises(
        ConfigError, match="prompt_len 30 and new_tokens 8 exceed max_model_len 32 "
    ):
        bench_offline(config, OfflineOptions(prompt_len=30, new_tokens=8))


@pytest.mark.parametrize("name", ["num_rounds", "num_threads"])
def test_counts_below_one_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        OfflineOptions(**{name: 0})  # type: ignore[arg-type]


def test_reports_name_a_model_without_the_machines_folders(tmp_path: Path) -> None:
    assert model_name(str(tmp_path / "smollm2.gguf")) == "smollm2.gguf"
    assert model_name({"model_type": "llama"}) == "inline model"
