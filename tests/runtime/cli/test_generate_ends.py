"""How ``generate`` ends: signals, a terminal, a stdout of others; what is kept then."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from noria.runtime.graphs import CompiledGraph
from noria.runtime.model_runner import ModelRunner
from noria.runtime.scheduler_output import SchedulerOutput

Run = Callable[..., Result]
StartNoria = Callable[..., "subprocess.Popen[str]"]
FIELDS = ["index", "prompt", "text", "token_ids", "finish_reason", "error"]


@pytest.fixture
def write_prompts(tmp_path: Path) -> Callable[..., Path]:
    """Write a text file of prompts."""

    def write(*texts: str) -> Path:
        path = tmp_path / "prompts.txt"
        path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
        return path

    return write


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("num_steps", [1, 2])
def test_an_interrupt_inside_a_step_still_ends_with_a_summary(
    run: Run,
    write_prompts: Callable[..., Path],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
    num_steps: int,
) -> None:
    """In the first step and in a later one, whose bucket is another."""
    run_graph, steps = ModelRunner.run_graph, list[str]()

    def run_and_interrupt(
        runner: ModelRunner, graph: CompiledGraph, scheduled: SchedulerOutput
    ) -> None:
        run_graph(runner, graph, scheduled)
        steps.append(graph.bucket.label)
        if len(steps) == num_steps:
            raise KeyboardInterrupt

    monkeypatch.setattr(ModelRunner, "run_graph", run_and_interrupt)

    result = run("generate", config, "--prompts", write_prompts("hello", "world"))

    assert len(set(steps)) == num_steps
    assert result.exit_code == 130
    assert "2 prompts: 0 finished, 0 failed, 2 unfinished" in result.stderr
    assert all(label in result.stderr for label in steps)
    assert result.stderr.endswith("\nInterrupted\n")


def test_results_on_a_stdout_that_appends_to_a_file_keep_what_it_holds(
    start_noria: StartNoria, write_prompts: Callable[..., Path], config: Path, tmp_path: Path
) -> None:
    prompts = write_prompts("hello")
    output = tmp_path / "out.jsonl"
    output.write_text('{"old": true}\n')

    with output.open("a") as file:
        arguments = ("generate", config, "--prompts", prompts, "-o", "-")
        with start_noria(*arguments, stdout=file) as noria:
            _, stderr = noria.communicate(timeout=600)
    assert noria.returncode == 0, stderr

    old, new = read_records(output)
    assert (old, list(new)) == ({"old": True}, FIELDS)


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_a_run_that_is_stopped_keeps_its_finished_records(
    start_noria: StartNoria,
    write_prompts: Callable[..., Path],
    config: Path,
    tmp_path: Path,
    sent: signal.Signals,
    status: int,
) -> None:
    num_prompts, output = 10_000, tmp_path / "out.jsonl"
    prompts = write_prompts(*["again and again"] * num_prompts)

    process = start_noria("generate", config, "--prompts", prompts, "-o", output)
    wait_for_lines(output, 5, process)
    process.send_signal(sent)
    _, errors = process.communicate(timeout=600)

    if sent == signal.SIGKILL:  # which may cut the last line
        output.write_bytes(b"".join(output.read_bytes().rpartition(b"\n")[:2]))
    records = read_records(output)
    assert process.returncode == status
    assert 5 <= len(records) < num_prompts
    assert all(len(record["token_ids"]) > 0 for record in records)
    assert "Traceback" not in errors
    if sent == signal.SIGINT:
        unfinished = num_prompts - len(records)
        assert f"{num_prompts} prompts: {len(records)} finished, 0 failed, {unfinished}" in errors
        assert errors.endswith("Interrupted\n")


def wait_for_lines(path: Path, num_lines: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 600
    while not path.exists() or path.read_bytes().count(b"\n") < num_lines:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_terminal_gets_bars_with_times_and_stdout_only_the_texts(
    start_noria: StartNoria, write_prompts: Callable[..., Path], config: Path, tmp_path: Path
) -> None:
    prompts = write_prompts("hello")
    terminal, stderr = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}

    process = start_noria("generate", config, "--prompts", prompts, stderr=stderr, env=environment)
    os.close(stderr)
    shown = read_terminal(terminal)
    output, _ = process.communicate(timeout=600)

    assert process.returncode == 0
    assert output.startswith("[0] hello\n")
    assert "[0] hello" not in shown
    assert "graphs" in shown
    assert "elapsed," in shown


def read_terminal(terminal: int) -> str:
    chunks = []
    try:
        while chunk := os.read(terminal, 4096):
            chunks.append(chunk)
    except OSError:  # how the other end of a closed terminal reads
        pass
    finally:
        os.close(terminal)
    return b"".join(chunks).decode()
