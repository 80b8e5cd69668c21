"""Engines that serve while worker processes compile the rest of their graphs."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from local_sets import (
    GREEDY,
    NUM_GRAPHS,
    PROMPTS,
    SETTINGS,
    num_compilations,
    only_set,
    tokens_of,
    warnings_in,
)

from noria.runtime import LLM, engine_start
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.leftovers import strays
from noria.runtime.compiled_set.local_set import LocalSet
from noria.runtime.compiled_set.staging import STAGED
from noria.runtime.errors import DamagedFile, SetError
from noria.runtime.warmup import WarmUp

NUM_AT_FIRST = 5
"""Graphs that serving begins with: two models, two samplers of two rows, a copy."""
NUM_LIMITS = 2
LONG_S = 600.0


@pytest.fixture(scope="module")
def plain() -> Iterator[list[tuple[int, ...]]]:
    """Tokens of an engine without a set."""
    threads = torch.get_num_threads()
    yield tokens_of(LLM(SETTINGS))
    torch.set_num_threads(threads)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of local sets with none in it; however little there is to compile is left."""
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    monkeypatch.setattr(engine_start, "WORKER_START_S", -1.0)
    return tmp_path / "sets"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, plain) -> Path:
    """A folder of local sets with a whole one."""
    folder = tmp_path_factory.mktemp("filled") / "sets"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORIA_SETS", str(folder))
        patch.setattr(engine_start, "WORKER_START_S", 1e9)
        LLM(SETTINGS)
    return folder


@pytest.fixture
def go_on(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set it to let what workers have compiled arrive, which none does before, however fast."""
    event, publish = threading.Event(), LocalSet.publish

    def publish_later(self: LocalSet, *graph: Any, **facts: Any) -> None:
        if threading.current_thread().name == "compiling":
            assert event.wait(LONG_S)
        publish(self, *graph, **facts)

    monkeypatch.setattr(LocalSet, "publish", publish_later)
    return event


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])


def num_pending(llm: LLM) -> int:
    return llm.loaded.arrivals.num_pending


def test_an_engine_serves_before_all_is_compiled_and_the_next_finds_all(
    root: Path, plain, go_on: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    with LLM(SETTINGS) as llm:
        assert num_pending(llm) == len(llm.loaded.plan.buckets) - NUM_LIMITS
        assert llm.loaded.invariance.num_graphs == NUM_LIMITS
        assert tokens_of(llm) == plain
        before = set(llm.loaded.runner.padding.by_bucket)

        go_on.set()
        llm.wait_for_graphs()

        assert num_pending(llm) == 0
        assert llm.loaded.invariance.num_graphs == len(llm.loaded.plan.buckets)
        assert llm.loaded.invariance.is_invariant
        (alone,) = llm.generate(PROMPTS[:1], GREEDY)
        assert alone.token_ids == plain[0]
        new = set(llm.loaded.runner.padding.by_bucket) - before
        assert {bucket.label for bucket in new} == {"prefill_t16_c64", "decode_s1_c64"}
        assert num_compilations(llm) == NUM_AT_FIRST

    again = LLM(SETTINGS)

    assert (num_compilations(again), num_pending(again)) == (0, 0)
    assert tokens_of(again) == plain
    assert len(SetFolder.open(only_set(root)).manifest.graphs) == NUM_GRAPHS
    assert SetFolder.open(only_set(root)).verify() == []
    assert warnings_in(caplog) == []


@pytest.mark.parametrize("damage", [cut, Path.unlink], ids=["cut", "gone"])
def test_e05_a_damaged_entry_that_workers_compile_again_is_named(
    root: Path,
    plain,
    filled: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Callable[[Path], None],
) -> None:
    """E05: once, as where it is compiled before serving."""
    shutil.copytree(filled, root)
    damage(only_set(root) / "graphs" / "decode_s1_c64.graph")

    with LLM(SETTINGS) as llm:
        assert num_pending(llm) == 1
        llm.wait_for_graphs()

    assert tokens_of(llm) == plain
    (warning,) = warnings_in(caplog)
    assert "decode_s1_c64.graph" in warning
    assert warning.endswith("it is compiled again")
    assert SetFolder.open(only_set(root)).verify() == []


def test_little_is_compiled_before_serving(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "WORKER_START_S", 1e9)

    llm = LLM(SETTINGS)

    assert (num_compilations(llm), num_pending(llm)) == (NUM_GRAPHS, 0)
    assert llm.loaded.invariance.num_graphs == len(llm.loaded.plan.buckets)


def test_without_memory_for_a_worker_all_is_compiled_before_serving(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_start, "free_memory_bytes", lambda: 2**28)

    llm = LLM(SETTINGS)

    assert (num_compilations(llm), num_pending(llm)) == (NUM_GRAPHS, 0)


def test_without_batch_invariance_nothing_is_served_until_all_is_compiled(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check = WarmUp._check
    monkeypatch.setattr(
        WarmUp,
        "_check",
        lambda self, graph, blocks: check(self, graph, blocks) and graph.bucket.phase == "prefill",
    )

    llm = LLM(SETTINGS)

    assert (num_compilations(llm), num_pending(llm)) == (NUM_GRAPHS, 0)
    assert set(llm.loaded.invariance.differing) == {"decode_s1_c64", "decode_s2_c64"}
    assert any("batch invariance: no" in one for one in warnings_in(caplog))


def test_workers_that_cannot_start_are_a_warning_and_the_engine_serves(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise SetError("no worker can start: Resource temporarily unavailable")

    monkeypatch.setattr(worker, "start_process", refuse)

    with LLM(SETTINGS) as llm, pytest.raises(SetError, match="no worker can start"):
        llm.wait_for_graphs()

    assert tokens_of(llm) == plain
    (warning,) = warnings_in(caplog)
    assert "Resource temporarily unavailable" in warning


def test_e08_a_graph_that_is_gone_when_it_is_to_be_loaded_is_not_compiled_in_between(
    root: Path, plain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """E08: no step waits for a compilation; the next start compiles it."""
    read = LocalSet.read

    def gone(self: LocalSet, name: str) -> bytes:
        if name == "decode_s1_c64":
            raise DamagedFile(f"{name}.graph is missing")
        return read(self, name)

    monkeypatch.setattr(LocalSet, "read", gone)

    with LLM(SETTINGS) as llm, pytest.raises(SetError, match=r"decode_s1_c64\.graph is missing"):
        llm.wait_for_graphs()

    assert num_compilations(llm) == NUM_AT_FIRST
    assert tokens_of(llm) == plain
    (warning,) = warnings_in(caplog)
    assert warning.endswith("larger graphs run instead")


def test_an_engine_that_is_forgotten_compiles_no_more(root: Path) -> None:
    llm = LLM(SETTINGS)
    compiling = llm.loaded.arrivals._compiling  # type: ignore[attr-defined]

    del llm
    gc.collect()

    assert compiling.is_over


def test_what_was_compiled_before_closing_is_kept(root: Path, plain) -> None:
    with LLM(SETTINGS) as llm:
        kept = num_compilations(llm)
    llm.close()

    found = SetFolder.open(only_set(root))

    assert tokens_of(llm) == plain
    assert found.verify() == []
    assert len(found.manifest.graphs) >= kept
    with pytest.raises(SetError, match="compiling was stopped"):
        llm.wait_for_graphs()


SCRIPT = """
import json, os, signal, sys
from noria.runtime import LLM, SamplingParams, engine_start
from noria.runtime.compiled_set import worker
engine_start.WORKER_START_S = -1.0
start = worker.start_process
def noted(niceness):
    made = start(niceness)
    print("worker", made[1].pid, flush=True)
    return made
worker.start_process = noted
llm = LLM(json.loads(sys.argv[1]))
print("pending", llm.loaded.arrivals.num_pending, flush=True)
ending = sys.argv[2]
if ending == "wait":
    llm.wait_for_graphs()
greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
outputs = llm.generate(json.loads(sys.argv[3]), greedy)
print("tokens", json.dumps([one.token_ids for one in outputs]), flush=True)
if ending == "interrupt":
    os.kill(os.getpid(), signal.SIGINT)
if ending == "exit":
    sys.exit(3)
if ending == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""
MANY = {
    **SETTINGS,
    "max_num_seqs": 12,
    "num_seqs_buckets": list(range(1, 13)),
    "num_blocks": "auto",
    "sampling": {"temperature": 0},
}


def run(root: Path, settings: dict[str, Any], ending: str) -> tuple[int, dict[str, list[str]], str]:
    """Run the script, which has no guard for ``__main__``; return status, lines by their word."""
    script = root.parent / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(settings), ending, json.dumps(PROMPTS)],
        env={**os.environ, "NORIA_SETS": str(root)},
        capture_output=True,  # ends when the last worker has closed stderr: when it has ended
        text=True,
        check=False,
        timeout=600,
    )
    said: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        word, _, rest = line.partition(" ")
        said.setdefault(word, []).append(rest)
    return done.returncode, said, done.stderr


def is_running(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("ending", "status", "error"),
    [
        ("end", 0, ""),
        pytest.param("exit", 3, "", marks=pytest.mark.long),
        ("interrupt", -signal.SIGINT, "KeyboardInterrupt"),
        ("kill", -signal.SIGKILL, ""),
    ],
)
def test_no_worker_outlives_a_script_however_it_ends(
    tmp_path: Path, ending: str, status: int, error: str
) -> None:
    """And it ends while they have work: twelve graphs are to be compiled."""
    returncode, said, stderr = run(tmp_path / "sets", MANY, ending)

    assert returncode in (status, 128 - status), stderr
    assert stderr.strip().endswith(error)
    assert bool(stderr) is bool(error), stderr
    assert said["pending"] == ["12"]
    assert len(said["tokens"]) == 1
    assert not any(map(is_running, said.get("worker", [])))
    folder = SetFolder.open(only_set(tmp_path / "sets"))
    cut_short = strays(folder.path, folder.manifest.all_files)
    assert folder.verify() == (cut_short if ending == "kill" else [])


def test_what_a_killed_script_left_in_the_set_is_gone_after_the_next_run(
    root: Path, filled: Path
) -> None:
    """A write that is cut short leaves its staged file: the next writer removes it."""
    shutil.copytree(filled, root)
    folder = SetFolder.open(only_set(root))
    (folder.path / "graphs" / "decode_s1_c64.graph").unlink()
    left = folder.path / f"{STAGED}manifest-manifest.json"
    left.write_text("{")
    assert [line for line in folder.verify() if left.name in line]

    with LLM(SETTINGS) as llm:
        llm.wait_for_graphs()

    assert SetFolder.open(folder.path).verify() == []


def test_a_script_without_a_guard_fills_the_set_and_runs_once(tmp_path: Path, plain) -> None:
    returncode, said, stderr = run(tmp_path / "sets", SETTINGS, "wait")

    assert (returncode, stderr) == (0, "")
    (tokens,) = said["tokens"]
    assert [tuple(one) for one in json.loads(tokens)] == plain
    assert said["pending"] == ["2"]
    assert said["worker"]
    assert len(SetFolder.open(only_set(tmp_path / "sets")).manifest.graphs) == NUM_GRAPHS
