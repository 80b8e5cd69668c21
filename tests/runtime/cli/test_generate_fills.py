"""``noria generate`` leaves a whole local set behind, however short the run was."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import Result

from noria.runtime import LLM, engine_start
from noria.runtime.compiled_set.folder import SetFolder

Run = Callable[..., Result]


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of local sets with none in it; all but the limit graphs is left to workers."""
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    monkeypatch.setattr(engine_start, "WORKER_START_S", -1.0)
    return tmp_path / "sets"


@pytest.fixture
def command(make_config: Callable[..., Path], tmp_path: Path) -> tuple[object, ...]:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt_token_ids": [1, 2, 3]}\n')
    config = make_config("cpu.yaml", backend="cpu", dtype="float32")
    return ("generate", config, "--prompts", prompts, "-o", tmp_path / "results.jsonl")


def test_a_short_run_waits_for_graphs_that_later_starts_load(
    run: Run, command: tuple[object, ...], sets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(import_module("noria.runtime.cli.generate"), "FILL_S", 600.0)

    first, again = run(*command), run(*command)

    assert (first.exit_code, again.exit_code) == (0, 0), first.output
    assert "waiting up to 600 s for 2 graphs" in first.stderr
    (path,) = sets.iterdir()
    assert len(SetFolder.open(path).manifest.graphs) == 9
    assert "waiting" not in again.stderr
    assert "compile" not in again.stderr


def test_an_interrupt_ends_the_waiting_and_no_more(
    run: Run,
    command: tuple[object, ...],
    sets: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    def interrupted(llm: LLM, timeout_s: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "wait_for_graphs", interrupted)

    result = run(*command)

    assert result.exit_code == 0, result.output
    assert "Interrupted" not in result.stderr
    assert (tmp_path / "results.jsonl").read_text().count("\n") == 1
