"""Two commands that compile one set at once, with real graphs and workers."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from thread_workers import start_thread

from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder


def graphs_of(path: Path) -> dict[str, bytes]:
    folder = SetFolder.open(path)
    return {name: folder.read(name) for name in folder.manifest.graphs}


@pytest.fixture
def alone(
    run: Callable[..., Result],
    make_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A set of few graphs that one command has made, whose workers were threads."""
    monkeypatch.setattr(worker, "start_process", start_thread)
    config = make_config(
        backend="cpu",
        dtype="float32",
        num_batched_tokens_buckets=[64],
        sampler_features=["greedy"],
    )
    assert run("compile", config, "-o", tmp_path / "alone", "--workers", 1).exit_code == 0
    return tmp_path / "alone"


@pytest.mark.parametrize("num_rounds", [1, pytest.param(10, marks=pytest.mark.long)])
def test_e06_two_commands_compile_one_set_and_each_graph_once(
    start_noria: Any, alone: Path, tmp_path: Path, num_rounds: int
) -> None:
    """E06: their graphs are those of one command alone, to the byte."""
    wanted = graphs_of(alone)
    for number in range(num_rounds):
        path = tmp_path / f"set_{number}"
        command = ("compile", tmp_path / "tiny.yaml", "-o", path, "--workers", 1)
        both = [start_noria(*command) for _ in range(2)]
        texts = [process.communicate(timeout=600) for process in both]

        counts = [re.findall(r"(\d+) (done|there|failed)", text) for text, _ in texts]
        num_done = sum(int(num) for one in counts for num, state in one if state == "done")
        assert [process.returncode for process in both] == [0, 0], texts
        assert num_done == len(wanted)
        assert graphs_of(path) == wanted
        assert SetFolder.open(path).verify() == []
        assert {name for name in os.listdir(path) if name.startswith(".")} == {".lock"}
