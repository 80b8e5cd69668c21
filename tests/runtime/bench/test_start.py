"""``noria bench start``: what is counted, and the whole measurement on a tiny model."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from noria.runtime.bench import start
from noria.runtime.bench.start import COLD, WARM, Start, StartReport, bench_start, start_lines
from noria.runtime.bench.start_worker import StartReply, StepPair
from noria.runtime.bench.tables import print_start
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
PARTS = ["imports", "model and checks", "weights", "KV cache", "graphs", "warm-up"]


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.yaml"
    path.write_text(CONFIG)
    return path


def reply(graphs: float, num_compilations: int) -> StartReply:
    seconds = {"imports": 3.0, "weights": 2.0, "graphs": graphs, "warm-up": 0.5}
    return StartReply(seconds, num_compilations, 10, 400 * 2**20)


def report(*, others_share: float = 0.0) -> StartReport:
    starts = [
        Start(kind, reply(graphs, num), others_share)
        for kind, graphs, num in [
            *[(COLD, 20.0, 12), (WARM, 0.3, 0)],
            *[(COLD, 30.0, 12), (WARM, 0.5, 0)],
            *[(COLD, 90.0, 12), (WARM, 0.4, 0)],
        ]
    ]
    steps = (StepPair("decode_s4_c64", 0.010, 0.008),)
    return StartReport("tiny", "some CPU", 2, 7.5, 3 * 2**19, tuple(starts), 2**19, steps)


def test_lines_are_medians_and_ranges_with_and_without_imports_and_weights() -> None:
    lines = start_lines(report())

    assert [line[0] for line in lines][:4] == ["imports", "weights", "graphs", "warm-up"]
    assert lines[2][1:] == ("30.00", "20.00 .. 90.00", "0.40", "0.30 .. 0.50")
    assert lines[4] == ("all", "35.50", "25.50 .. 95.50", "5.90", "5.80 .. 6.00")
    assert lines[5][0] == "all but imports and weights"
    assert lines[5][1:] == ("30.50", "20.50 .. 90.50", "0.90", "0.80 .. 1.00")


def printed(shown: StartReport) -> str:
    console = Console(width=160, record=True, file=io.StringIO())
    print_start(shown, console)
    return console.export_text()


def test_the_table_tells_compilations_memory_and_step_times() -> None:
    text = printed(report())

    assert "cold: 10 model graphs, 12 compilations, 400 MiB." in text
    assert "warm: 10 model graphs, 0 compilations, 400 MiB." in text
    assert "set: compiled in 7.5 s, 1.5 MiB." in text
    assert "one more model graph of the set: 0.50 MiB." in text
    assert "10.0 ms from the set, 8.0 ms compiled here: 1.250 times as long." in text
    assert "measure again" not in text


def test_a_machine_that_others_use_is_said_and_what_is_not_known_left_out() -> None:
    shown = replace(report(others_share=0.4), graph_bytes=None)

    text = printed(shown)

    assert "! others used up to 40% of the CPUs: measure again." in text
    assert "one more model graph" not in text


def test_cold_starts_compile_all_and_warm_ones_nothing(config: Path, tmp_path: Path) -> None:
    """The measurement itself, in processes of their own."""
    kept = tmp_path / "report.json"
    runner = CliRunner()

    result = runner.invoke(
        main, ["bench", "start", str(config), "--num-rounds", "1", "--json", str(kept)]
    )

    assert result.exit_code == 0, result.output
    assert "all but imports and weights" in result.stdout
    values = json.loads(kept.read_text())
    cold, warm = (one["reply"] for one in values["starts"])
    assert [one["kind"] for one in values["starts"]] == [COLD, WARM]
    assert cold["num_compilations"] > cold["num_graphs"] == 3
    assert (warm["num_compilations"], warm["num_graphs"]) == (0, 3)
    assert [*cold["seconds"]] == [*warm["seconds"]] == [*PARTS, "rest of memory"]
    assert [one["label"] for one in values["steps"]] == ["decode_s4_c64", "prefill_t64_c64"]
    if sys.platform == "linux":
        assert 0 < values["graph_bytes"] < 4 * 2**20


def test_a_start_that_fails_says_why(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here because there is no set where the warm start looks for one."""
    monkeypatch.setattr(start, "_compile_set", lambda config, path: (0.0, 0))

    with pytest.raises(ConfigError, match=r"a warm start failed: .*no compiled set.*manifest"):
        bench_start(config, num_rounds=1)


def test_at_least_one_round_is_needed(config: Path) -> None:
    with pytest.raises(ConfigError, match="num_rounds is 0"):
        bench_start(config, num_rounds=0)
