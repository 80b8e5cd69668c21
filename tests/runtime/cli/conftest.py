"""A tiny engine behind the command line, in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from click.testing import CliRunner, Result
from plan_commands import write_inputs

from noria.runtime.cli import main

Run = Callable[..., Result]
NoriaCommand = Callable[..., "subprocess.Popen[str]"]

TINY: Mapping[str, object] = {
    "model": {
        "vocab_size": 300,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "eos_token_id": 299,
    },
    "backend": "reference",
    "num_threads": 1,
    "max_model_len": 64,
    "max_num_seqs": 4,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "num_batched_tokens_buckets": [32, 64],
    "num_seqs_buckets": [2, 4],
    "sampling": {"temperature": 0, "max_tokens": 4},
}


@pytest.fixture(autouse=True)
def keep_num_threads() -> Iterator[None]:
    """Undo the configuration's ``num_threads``, which holds for the whole process."""
    num_threads = torch.get_num_threads()
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def tiny_settings() -> dict[str, Any]:
    """What the tiny configuration holds."""
    return deepcopy(dict(TINY))


@pytest.fixture
def run() -> Run:
    """Run ``noria`` in this process."""

    def run_command(*arguments: object) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments])

    return run_command


@pytest.fixture
def make_config(tmp_path: Path) -> Callable[..., Path]:
    """Write the tiny configuration with some settings changed; None leaves one out."""

    def write(name: str = "tiny.yaml", **changes: object) -> Path:
        settings = {k: v for k, v in {**TINY, **changes}.items() if v is not None}
        path = tmp_path / name
        path.write_text(yaml.safe_dump(settings), encoding="utf-8")
        return path

    return write


@pytest.fixture
def config(make_config: Callable[..., Path]) -> Path:
    return make_config()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be in a folder with what plans are made from: a configuration, its costs and a trace."""
    write_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def start_noria() -> NoriaCommand:
    """Start ``noria`` in a process of its own."""

    def start(*arguments: object, **options: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "noria.runtime", *map(str, arguments)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        return subprocess.Popen(command, **pipes)  # type: ignore[call-overload, no-any-return]

    return start
