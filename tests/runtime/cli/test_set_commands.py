"""Commands that make, check, ship and clean up compiled sets."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from command_at_point import stopped_at
from command_forks import FOUR_GRAPHS
from thread_workers import start_thread

from noria.kernels.reference import ReferenceKernels
from noria.runtime.compiled_set import worker
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.tracing import Tracer
from noria.runtime.compiled_set.workers import missing_graphs

Run = Callable[..., Result]
COMPILE = ReferenceKernels.compile


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers be threads of this process."""
    monkeypatch.setattr(worker, "start_process", start_thread)


@pytest.fixture
def made(run: Run, config: Path, tmp_path: Path, in_threads: None) -> Path:
    """A set."""
    assert run("compile", config, "-o", tmp_path / "set").exit_code == 0
    return tmp_path / "set"


@pytest.fixture
def cached(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The set, in the local cache."""
    monkeypatch.delenv("NORIA_SETS")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "noria" / "sets").mkdir(parents=True)
    return made.rename(tmp_path / "noria" / "sets" / ("0123456789abcdef" * 4))


@pytest.mark.usefixtures("in_threads")
def test_compile_writes_a_set_and_then_finds_it(run: Run, config: Path, tmp_path: Path) -> None:
    first = run("compile", config, "-o", tmp_path / "set", "--workers", 1)
    again = run("compile", config, "-o", tmp_path / "set", "--workers", 1)

    row = first.stdout.splitlines()[1].split()
    assert first.exit_code == again.exit_code == 0
    assert row[:2] == ["prefill_t64_c64", "done"]
    assert f"{tmp_path / 'set'}: 9 done; " in first.stdout
    assert "1 worker (as asked for)" in first.stdout
    assert f"{tmp_path / 'set'}: 9 there; " in again.stdout
    assert "0 workers (no more were needed)" in again.stdout
    assert "compile: 9/9 decode_s2_c64" in first.stderr


@pytest.mark.usefixtures("in_threads")
def test_a_graph_that_fails_is_status_1_and_named_with_its_file(
    run: Run, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Tracer, name: str) -> bytes:
        if name == "decode_s4_c64":
            raise RuntimeError("no such operator")
        return b"trace"

    monkeypatch.setattr(Tracer, "trace", fail)

    result = run("compile", config, "-o", tmp_path / "set")
    checked = run("verify", tmp_path / "set")

    error_file = tmp_path / "set" / "errors" / "decode_s4_c64.txt"
    line = f"decode_s4_c64 failed: RuntimeError: no such operator ({error_file})"
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == line
    assert "8 done, 1 failed" in result.stdout
    assert "in fail" in error_file.read_text()
    assert checked.exit_code == 1
    assert checked.stdout == f"{tmp_path / 'set'}: decode_s4_c64 is not compiled\n"


def test_workers_need_a_folder(run: Run, config: Path) -> None:
    result = run("compile", config, "--workers", 2)

    assert result.exit_code == 2
    assert "--workers: only with -o" in result.stderr


@pytest.mark.usefixtures("in_threads")
def test_a_folder_of_something_else_is_refused(run: Run, config: Path, tmp_path: Path) -> None:
    result = run("compile", config, "-o", tmp_path)

    assert result.exit_code == 2
    assert "holds other files" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_verify_says_what_is_damaged(run: Run, made: Path) -> None:
    """E05: a flipped byte, a missing file, a file of nobody, a damaged manifest."""
    whole = run("verify", made)
    plan = made / "plan.json"
    plan.write_bytes(b"[" + plan.read_bytes()[1:])
    (made / "graphs" / "copy_blocks_g0_s4.graph").unlink()
    (made / "notes.txt").write_text("mine")
    damaged = run("verify", made)
    manifest = made / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:-30])
    worse = run("verify", made)

    assert whole.exit_code == 0
    assert whole.stdout.startswith(f"OK {made}: 9 graphs, ")
    assert damaged.exit_code == worse.exit_code == 1
    assert len(damaged.stdout.splitlines()) == 3
    assert all(name in damaged.stdout for name in ("plan.json", "copy_blocks_g0_s4", "notes.txt"))
    assert len(worse.stdout.splitlines()) == 1


def test_verify_of_no_folder_is_a_mistake(run: Run, tmp_path: Path) -> None:
    result = run("verify", tmp_path / "none")

    assert result.exit_code == 2
    assert result.stderr == f"Error: {tmp_path / 'none'} is no folder\n"


def test_generate_takes_graphs_from_a_set_and_nothing_else(
    run: Run,
    config: Path,
    make_config: Callable[..., Path],
    made: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """E02: what differs between the set and the configuration is named, old against new."""
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("one\ntwo is longer\n")
    options = ("--prompts", prompts, "--compiled", made, "--require-compiled")
    other = make_config("other.yaml", dtype="float64")
    here = run("generate", config, "--prompts", prompts)

    def refuse(*args: object) -> None:
        raise AssertionError("a graph was compiled")

    with monkeypatch.context() as patch:
        patch.setattr(ReferenceKernels, "compile", refuse)
        patch.setattr(ReferenceKernels, "load", lambda self, traced, *graph: COMPILE(self, *graph))
        loaded = run("generate", config, *options)
    differs = run("generate", other, *options)
    (made / "graphs" / "decode_s4_c64.graph").unlink()
    missing = run("generate", config, *options)
    no_set = run("generate", config, "--prompts", prompts, "--require-compiled")

    assert loaded.exit_code == 0, loaded.output
    assert loaded.stdout == here.stdout
    assert [one.exit_code for one in (differs, missing, no_set)] == [2, 2, 2]
    assert 'dtype: "float32" in the set, "float64" here' in differs.stderr
    assert "decode_s4_c64.graph is missing; nothing may be compiled" in missing.stderr
    assert "compile is never, compiled names no set, and there are no local sets" in no_set.stderr


@pytest.mark.parametrize("name", ["set.tar", "set.tar.gz"])
def test_a_bundle_is_the_same_set_again(run: Run, made: Path, tmp_path: Path, name: str) -> None:
    packed = run("bundle", made, tmp_path / name)
    unpacked = run("unbundle", tmp_path / name, tmp_path / "other")
    run("bundle", tmp_path / "other", tmp_path / f"again-{name}")

    assert packed.exit_code == unpacked.exit_code == 0
    assert packed.stdout.startswith(f"{tmp_path / name}: 9 graphs, ")
    assert run("verify", tmp_path / "other").exit_code == 0
    assert (tmp_path / f"again-{name}").read_bytes() == (tmp_path / name).read_bytes()


def test_bundles_of_nothing_are_mistakes(run: Run, made: Path, tmp_path: Path) -> None:
    no_set = run("bundle", tmp_path / "none", tmp_path / "x.tar")
    no_file = run("unbundle", tmp_path / "none", tmp_path / "x")
    full = run("unbundle", tmp_path / "none", made)

    assert [result.exit_code for result in (no_set, no_file, full)] == [2, 2, 2]
    assert all(len(result.stderr.splitlines()) == 1 for result in (no_set, no_file, full))


def test_the_cache_lists_shows_and_removes(run: Run, cached: Path) -> None:
    listed = run("cache", "ls")
    shown = run("cache", "show", "0123")
    kept = run("cache", "gc")
    would = run("cache", "gc", "--all", "--dry-run")
    was_there = cached.exists()
    removed = run("cache", "gc", "--all")

    assert listed.stdout.splitlines()[1].split()[:5] == [
        "0123456789ab",
        "inline",
        "model",
        "9",
        "graphs",
    ]
    assert shown.stdout.startswith(f"{cached}: whole\n")
    assert "architecture.num_heads: 2\n" in shown.stdout
    assert "prefill_t64_c64" in shown.stdout
    assert kept.stdout == "0 B freed, 1 set left\n"
    assert "would be removed" in would.stdout
    assert was_there
    assert "0 sets left" in removed.stdout
    assert not cached.exists()
    assert run("cache", "ls").stdout.endswith(": no sets\n")
    assert run("cache", "show", "0123").exit_code == 2


def test_a_damaged_set_of_the_cache_is_listed_and_collected(run: Run, cached: Path) -> None:
    (cached / "manifest.json").write_text("{}")

    listed, shown, removed = run("cache", "ls"), run("cache", "show", "0"), run("cache", "gc")

    assert listed.stdout.splitlines()[1].split()[-1] == "damaged"
    assert shown.exit_code == 1
    assert "0123456789ab removed: damaged" in removed.stdout
    assert not cached.exists()


def test_interrupted_and_killed_runs_leave_a_set_that_the_next_completes(
    start_noria: Any, tmp_path: Path
) -> None:
    """E05, E06: SIGINT when the first graph is listed, then SIGKILL, with real workers."""
    config, path = tmp_path / "four.yaml", tmp_path / "set"
    config.write_text(yaml.safe_dump(FOUR_GRAPHS))
    command = ("compile", config, "-o", path, "--workers", 1)

    interrupted = stopped_at("manifest.renamed:6", command, subprocess.PIPE)
    os.killpg(interrupted.pid, signal.SIGINT)
    os.killpg(interrupted.pid, signal.SIGCONT)
    _, interrupted_text = interrupted.communicate(timeout=600)
    num_first = num_done(path)
    killed = stopped_at("file.staged:2", command, subprocess.PIPE)
    killed.kill()
    killed.communicate(timeout=600)  # the worker, which has its pipe, ends too
    num_second = num_done(path)
    last = start_noria(*command)
    text, _ = last.communicate(timeout=600)

    assert interrupted.returncode == 130
    assert interrupted_text.splitlines()[-1] == "Interrupted"
    assert "Traceback" not in interrupted_text
    assert (num_first, num_second) == (1, 2)
    assert last.returncode == 0
    assert f"{num_second} there; " in text
    assert missing_graphs(SetFolder.open(path).manifest) == []
    assert SetFolder.open(path).verify() == []


def num_done(path: Path) -> int:
    return len(SetFolder.open(path).manifest.graphs)
