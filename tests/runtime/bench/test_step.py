"""Arithmetic of step profiles, and the whole measurement on a tiny model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner

from noria.runtime.bench import machine
from noria.runtime.bench.step import (
    OperatorTime,
    StepProfile,
    bench_step,
    profile_lines,
    sum_by_operator,
)
from noria.runtime.cli import main
from noria.runtime.errors import ConfigError

CONFIG = """
model:
  model_type: llama
  vocab_size: 64
  hidden_size: 16
  intermediate_size: 32
  num_hidden_layers: 2
  num_attention_heads: 2
  num_key_value_heads: 1
  tie_word_embeddings: true
backend: cpu
max_model_len: 64
max_num_seqs: 4
max_num_batched_tokens: 64
num_batched_tokens_buckets: [64]
num_seqs_buckets: [1, 4]
num_threads: 1
"""


@dataclass
class Command:
    operator: str
    flop: int
    num_bytes: int
    seconds: float


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration file; measuring the machine takes no time."""
    monkeypatch.setattr(machine, "READ_BYTES", 4096)
    monkeypatch.setattr(machine, "MATRIX_SIZE", 8)
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def test_operators_add_up_the_medians_of_their_commands() -> None:
    def run(*seconds: float) -> list[Command]:
        names = ("linear", "norm", "linear")
        return [Command(name, 10, 3, s) for name, s in zip(names, seconds, strict=True)]

    operators = sum_by_operator([run(1, 9, 4), run(2, 8, 5), run(60, 7, 6)])

    assert operators == (
        OperatorTime("norm", 1, 10, 3, 8),
        OperatorTime("linear", 2, 20, 6, 2 + 5),
    )


@pytest.mark.parametrize(
    ("flop", "num_bytes", "seconds"), [(600, 10, 6.0), (600, 100, 10.0), (0, 20, 2.0)]
)
def test_the_roof_is_what_takes_longer_multiplying_or_reading(
    flop: int, num_bytes: int, seconds: float
) -> None:
    operator = OperatorTime("any", 1, flop, num_bytes, 60.0)

    assert operator.roof_seconds(flop_s=100, read_bytes_s=10) == seconds


def test_lines_show_rates_and_what_the_parts_make_up() -> None:
    operator = OperatorTime("linear 4x4", 2, 3 * 10**9, 2 * 10**9, 0.5)
    profile = StepProfile("decode_s1_c8", (operator,), {"inputs": 0.25}, 1.0)

    lines = list(profile_lines(profile, flop_s=12e9, read_bytes_s=100e9))

    assert profile.accounted == 0.75
    assert lines == [
        ("linear 4x4", "2", "500.000", "50.0%", "6.0", "4.0", "50%"),
        ("host: inputs", "1", "250.000", "25.0%", "-", "-", "-"),
        ("whole step", "", "1000.000", "75.0%", "", "", ""),
    ]


def test_every_decode_bucket_and_one_prefill_bucket_is_profiled(config: Path) -> None:
    _, profiles = bench_step(config)

    assert [p.label for p in profiles] == ["decode_s1_c64", "decode_s4_c64", "prefill_t64_c64"]
    for profile in profiles:
        counts = {operator.operator: operator.count for operator in profile.operators}
        assert counts["attend"] == 2
        assert counts["linear 16x64"] == 2 + 1  # gate and up of two layers; the head
        assert set(profile.host) == {"inputs", "sampling", "scheduling"}
        assert profile.seconds > 0


def test_the_command_prints_a_table_per_bucket(config: Path) -> None:
    result = CliRunner().invoke(main, ["bench", "step", str(config)])

    assert result.exit_code == 0
    assert "decode_s4_c64" in result.output
    assert "host: scheduling" in result.output


def test_a_backend_without_commands_is_refused(config: Path) -> None:
    config.write_text(CONFIG.replace("backend: cpu", "backend: reference"))

    with pytest.raises(ConfigError, match="backend: reference cannot time"):
        bench_step(config)
