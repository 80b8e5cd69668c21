"""Where results of ``generate`` cannot go, and what is said of it."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

Run = Callable[..., Result]
StartNoria = Callable[..., "subprocess.Popen[str]"]
has_full_device = pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="has no device that is always full"
)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("hello\n")
    return path


@has_full_device
def test_a_full_disk_is_one_line_after_the_summary(run: Run, config: Path, prompts: Path) -> None:
    result = run("generate", config, "--prompts", prompts, "-o", "/dev/full")

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == "Error: /dev/full: No space left on device"


def test_a_device_takes_results_though_it_keeps_none(run: Run, config: Path, prompts: Path) -> None:
    assert run("generate", config, "--prompts", prompts, "-o", "/dev/null").exit_code == 0


def test_two_runs_never_write_to_one_file(
    run: Run, config: Path, prompts: Path, tmp_path: Path
) -> None:
    output = tmp_path / "out.jsonl"
    with output.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        other.write("of the other")

        refused = run("generate", config, "--prompts", prompts, "-o", output)

    assert refused.exit_code == 2
    assert refused.stderr == f"Error: {output}: another process is writing to it\n"
    assert output.read_text() == "of the other"
    for _ in range(2):
        assert run("generate", config, "--prompts", prompts, "-o", output).exit_code == 0
    assert len(output.read_text().splitlines()) == 1


@pytest.mark.parametrize("name", ["configuration", "model", "tokenizer"])
def test_what_a_run_reads_is_never_overwritten(
    run: Run, make_config: Callable[..., Path], prompts: Path, tmp_path: Path, name: str
) -> None:
    files = {key: tmp_path / f"{key}.gguf" for key in ("model", "tokenizer")}
    for path in files.values():
        path.write_text("weights")
    files["configuration"] = config = make_config(**{k: str(v) for k, v in files.items()})
    before = files[name].read_text()
    output = tmp_path / "link"
    output.symlink_to(files[name])

    result = run("generate", config, "--prompts", prompts, "-o", output)

    assert result.exit_code == 2
    assert result.stderr == (f"Error: {output}: is the file of the {name}; write to another one\n")
    assert files[name].read_text() == before


def test_a_closed_stdout_is_said_before_anything_is_compiled(
    start_noria: StartNoria, config: Path, prompts: Path
) -> None:
    arguments = ("generate", config, "--prompts", prompts, "-o", "-")
    with start_noria(*arguments, stdout=None, preexec_fn=lambda: os.close(1)) as noria:
        _, errors = noria.communicate(timeout=600)

    assert (noria.returncode, errors) == (2, "Error: -o -: stdout is closed\n")


@has_full_device
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["generate", "-o", "-"]])
def test_a_full_disk_behind_stdout_is_one_line(
    start_noria: StartNoria, config: Path, prompts: Path, command: list[str], unbuffered: str
) -> None:
    more = ["--prompts", prompts] if command[0] == "generate" else []
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with (
        Path("/dev/full").open("w") as full,
        start_noria(*command, config, *more, stdout=full, env=environment) as noria,
    ):
        _, errors = noria.communicate(timeout=600)

    assert noria.returncode == 2
    assert errors.splitlines()[-1] == "Error: stdout: No space left on device"
    assert "Traceback" not in errors
