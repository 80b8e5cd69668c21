"""The measurement of decoding on small tokenizers, and its command."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from noria.runtime.bench.detokenize import STOP, TEXTS, bench_detokenize, tokenizer_of
from noria.runtime.cli import main
from noria.runtime.errors import ConfigError
from noria.runtime.models.tokenizer import StreamDecoder, Tokenizer

CONFIG = """
model:
  model_type: llama
  vocab_size: VOCAB
  hidden_size: 16
  intermediate_size: 32
  num_hidden_layers: 1
  num_attention_heads: 2
  num_key_value_heads: 1
  eos_token_id: 0
backend: reference
max_model_len: 64
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.replace("VOCAB", "300"))
    return path


@pytest.fixture
def tokenizer(config: Path) -> Tokenizer:
    return tokenizer_of(config, None)


def test_every_kind_of_text_is_measured_and_exact(tokenizer: Tokenizer) -> None:
    rows = bench_detokenize(tokenizer, num_streams=3, num_steps=20)

    assert [row.text for row in rows] == [*TEXTS, "mixed, 3 stop strings"]
    assert all(row.is_exact for row in rows)
    assert all(0 < row.fastest <= row.seconds <= row.late for row in rows)
    per_character = {row.text: row.tokens_per_character for row in rows}
    assert per_character["plain"] == 1
    assert 3 < per_character["rare characters"] < per_character["emoji"] + 1 < 5


def test_a_decoder_that_loses_text_is_not_exact(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StreamDecoder, "flush", lambda self: "")

    rows = bench_detokenize(tokenizer, num_streams=8, num_steps=3)

    assert not all(row.is_exact for row in rows)


def test_no_stop_string_is_in_the_texts() -> None:
    assert not any(stop in 2 * text for stop in STOP for text in TEXTS.values())


def test_the_command_prints_a_row_per_text(config: Path) -> None:
    arguments = ["bench", "detokenize", str(config), "--num-streams", "2", "--num-steps", "3"]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0
    assert "a step of 2 streams" in result.output
    assert all(name in result.output for name in TEXTS)
    assert "NO" not in result.output


def test_the_command_takes_a_folder_with_a_tokenizer(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(tokenizer.to_json())
    arguments = ["bench", "detokenize", "--tokenizer", str(tmp_path), "--num-steps", "2"]
    result = CliRunner().invoke(main, arguments)

    assert result.exit_code == 0
    assert "a step of 256 streams" in result.output


@pytest.mark.parametrize("given", [[], ["config.yaml", "--tokenizer", "folder"]])
def test_the_command_takes_exactly_one_of_both(given: list[str]) -> None:
    result = CliRunner().invoke(main, ["bench", "detokenize", *given])

    assert result.exit_code == 2
    assert "give either CONFIG or --tokenizer" in result.output


def test_a_model_without_a_tokenizer_is_refused(config: Path) -> None:
    config.write_text(CONFIG.replace("VOCAB", "61"))

    with pytest.raises(ConfigError, match="the model has no tokenizer"):
        tokenizer_of(config, None)
