"""``compile`` over a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from noria.runtime import engine_start
from noria.runtime.compiled_set.folder import SetFolder

Run = Callable[..., Result]


def test_compile_reports_seconds_pool_memory_and_invariance(run: Run, config: Path) -> None:
    result = run("compile", config)

    lines = result.stdout.splitlines()
    assert [line.rsplit(maxsplit=1)[0].strip() for line in lines[1:7]] == [
        "load",
        "compile prefill_t64_c64",
        "compile decode_s4_c64",
        "compile prefill_t32_c64",
        "compile decode_s2_c64",
        "warm-up",
    ]
    # 4 requests of 64 tokens in blocks of 16, and the null block.
    assert "num_blocks 17 (4 requests of 64 tokens): 256 tokens in blocks of 16" in result.stdout
    # Per token and layer: key and value of one head of 8 numbers, 4 bytes each.
    assert f"KV cache {17 * 16 * 2 * 8 * 4 / 1024:.1f} KiB" in result.stdout
    assert "batch invariance: " in result.stdout
    assert "Nothing was written to disk" in lines[-1]
    assert result.exit_code == 0


@pytest.mark.parametrize("start_s", [-1.0, 1e9], ids=["by workers", "here"])
def test_compile_fills_the_local_set_and_says_where(
    run: Run,
    make_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    start_s: float,
) -> None:
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "sets"))
    monkeypatch.setattr(engine_start, "WORKER_START_S", start_s)
    config = make_config("cpu.yaml", backend="cpu", dtype="float32")

    first, again = run("compile", config), run("compile", config)

    (path,) = (tmp_path / "sets").iterdir()
    where = f"The graphs are in the local set {path}: the next start finds them there."
    assert [one.exit_code for one in (first, again)] == [0, 0], first.output
    assert [one.stdout.splitlines()[-1] for one in (first, again)] == [where, where]
    assert ("2 more, by workers" in first.stdout) is (start_s < 0)
    assert "in all 4 graphs" in first.stdout
    assert "compile prefill_t64_c64" in first.stdout
    assert "load prefill_t64_c64" in again.stdout
    assert "compile " not in again.stdout
    assert len(SetFolder.open(path).manifest.graphs) == 9
    listed, shown = run("cache", "ls"), run("cache", "show", path.name[:12])
    assert "9 graphs" in listed.stdout
    assert "whole" in listed.stdout
    assert "num_blocks any" in shown.stdout
    assert "0 sets left" not in run("cache", "gc").stdout
    assert path.is_dir()


def test_compile_says_where_the_local_set_cannot_be_written(
    run: Run,
    make_config: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("NORIA_SETS", str(tmp_path / "file"))
    config = make_config("cpu.yaml", backend="cpu", dtype="float32")

    result = run("compile", config)

    assert result.exit_code == 0
    last = result.stdout.splitlines()[-1]
    start = f"Some graphs could not be kept in the local set: {tmp_path / 'file'}"
    assert last.startswith(start)
    assert last.endswith("cannot be written: Not a directory")
