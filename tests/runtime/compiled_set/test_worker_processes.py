"""Workers as processes: what they take from their starter, and that they end with it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.tracing import Recipe
from noria.runtime.compiled_set.worker import Worker
from noria.runtime.errors import SetError

SETTINGS = """
SETTINGS = {
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
    "dtype": "float32",
    "max_model_len": 64,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 64,
    "block_size": 16,
    "num_batched_tokens_buckets": [64],
    "num_seqs_buckets": [2],
}
"""
UNGUARDED = f"""
import sys
from pathlib import Path
from noria.runtime.compiled_set.compiling import compile_set
from noria.runtime.config import parse_config
{SETTINGS}
with open("runs", "a") as runs:
    runs.write("once\\n")
compiled = compile_set(parse_config(SETTINGS), Path("set"), workers=2)
print(len(compiled.graphs), len(compiled.failed), compiled.workers.num)
"""
STARTER = f"""
import os, sys, time
from noria.runtime.compiled_set.tracing import Recipe
from noria.runtime.compiled_set.worker import Worker
from noria.runtime.config import parse_config
from noria.runtime.models.sources import open_model
{SETTINGS}
config = parse_config(SETTINGS)
worker = Worker(Recipe(config, open_model(config.model).architecture, None, (9,)), niceness=3)
message = worker.connection.recv()
pid = worker._process.pid
print(type(message).__name__, pid, os.getpriority(os.PRIO_PROCESS, pid), flush=True)
time.sleep(1000)
"""
AT_WORK = """
import os, time
with open(os.environ["AT_WORK"], "w") as at_work:
    at_work.write("yes")
"""
FOREVER = {"waits": "time.sleep(1000)", "computes": "while True: pass"}
SITE = """
import os, sys
print("said in", os.getpid())
print("warned in", os.getpid(), file=sys.stderr)
"""
RECIPE = cast(Recipe, None)


def python_path(*first: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, first), *sys.path])}


def test_a_script_without_a_guard_compiles_a_set_and_runs_once(tmp_path: Path) -> None:
    """What its workers print is not on its output, and their warnings are with its own."""
    here, site, scripts = tmp_path / "here", tmp_path / "site", tmp_path / "scripts"
    for folder in (here, site, scripts):
        folder.mkdir()
    (scripts / "compile_it.py").write_text(UNGUARDED)
    (site / "sitecustomize.py").write_text(SITE)
    (here / "multiprocessing.py").write_text("raise ImportError('not of the starter')")

    done = subprocess.run(
        [sys.executable, scripts / "compile_it.py"],
        cwd=here,
        env=python_path(site),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (here / "runs").read_text() == "once\n"
    assert [line for line in done.stdout.splitlines() if "said" not in line] == ["5 0 2"]
    assert done.stdout.count("said in") == 1
    assert done.stderr.count("warned in") == 3
    assert SetFolder.open(here / "set").verify() == []


def test_a_worker_stands_back_and_ends_with_a_starter_that_is_killed(tmp_path: Path) -> None:
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER], stdout=subprocess.PIPE, text=True, env=python_path()
    )
    with starter:
        assert starter.stdout is not None
        message, pid, niceness = starter.stdout.readline().split()
        end = os.pidfd_open(int(pid))
        starter.kill()

    assert message == "Ready"
    assert int(niceness) == os.getpriority(os.PRIO_PROCESS, 0) + 3
    assert ended(end), "the worker goes on without its starter"


class Given:
    """Runs code where it is received."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        return exec, (self.code,)


@pytest.mark.parametrize("does", FOREVER)
@pytest.mark.parametrize("where", ["imports", "works"])
def test_a_worker_ends_with_its_connection_whatever_it_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str, does: str
) -> None:
    """From its start on: importing torch takes seconds in which it is not asked for anything."""
    os.mkfifo(tmp_path / "at work")
    monkeypatch.setenv("AT_WORK", str(tmp_path / "at work"))
    code = AT_WORK + FOREVER[does]
    if where == "imports":
        (tmp_path / "torch.py").write_text(code)
        monkeypatch.syspath_prepend(tmp_path)

    connection, process = worker.start_process(0)
    try:
        connection.send(Given(code))
        assert (tmp_path / "at work").read_text() == "yes"
        connection.close()
        assert process.wait(600) == 0
    finally:
        process.kill()
        process.wait()


def ended(process: int) -> bool:
    """Wait for the end of a process, given as a file descriptor; end it if it goes on."""
    try:
        is_ended = bool(select.select([process], [], [], 600)[0])
        if not is_ended:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return is_ended
    finally:
        os.close(process)


@pytest.mark.parametrize("path", ["", "/nowhere/python"])
def test_without_a_python_to_run_one_clear_line_says_so(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", path)

    with pytest.raises(SetError, match=r"^no worker can start: .*(sys\.executable|No such file)"):
        Worker(RECIPE)


def test_a_program_that_python_was_frozen_into_is_not_run_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(*arguments: object, **options: object) -> None:
        raise AssertionError("it was started")

    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(worker.subprocess, "Popen", run)

    with pytest.raises(SetError, match=r"^no worker can start"):
        Worker(RECIPE)
