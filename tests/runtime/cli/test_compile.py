"""``compile`` over a tiny model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from click.testing import Result

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
