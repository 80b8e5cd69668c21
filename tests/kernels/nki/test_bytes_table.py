"""The tables of bytes in docs/kernels.md are what the simulator counts.

``python tests/kernels/nki/test_bytes_table.py`` writes them anew.
"""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from noria.kernels.nki.decode_trace import PATHWAYS, DecodeStep, decode_cost

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "kernels.md"
TABLE = re.compile(r"(<!-- bytes:.*?-->\n)(.*?)(<!-- end of bytes -->)", re.DOTALL)
BLOCK_SIZES = (1, 16, 64, 128)
KV_HEADS = (1, 4)
LIVE = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0)
ROWS = list(product(BLOCK_SIZES, KV_HEADS, PATHWAYS))
MOST = 1.05
WINDOWS_TABLE = re.compile(r"(<!-- windows:.*?-->\n)(.*?)(<!-- end of windows -->)", re.DOTALL)
WINDOWED_ROWS = list(product((False, True), (None, 128, 512)))


def step_of(block_size: int, num_kv_heads: int, live: float) -> DecodeStep:
    """Return a step of one request whose table has 128 blocks."""
    context = 128 * block_size
    return DecodeStep(1, context, live, block_size, num_heads=4, num_kv_heads=num_kv_heads)


def ratios(block_size: int, num_kv_heads: int, pathway: str) -> tuple[list[float], int]:
    """Return moved/needed for each live share, and the bytes of all that is not cache."""
    steps = [step_of(block_size, num_kv_heads, live) for live in LIVE]
    costs = [decode_cost(step, pathway, "trn2") for step in steps]
    (other,) = {cost.other_bytes for cost in costs}
    moved = [c.cache.moved_bytes / s.needed_bytes for c, s in zip(costs, steps, strict=True)]
    return moved, other


def row(block_size: int, num_kv_heads: int, pathway: str) -> str:
    moved, other = ratios(block_size, num_kv_heads, pathway)
    block = step_of(block_size, num_kv_heads, 0.0).needed_bytes
    cells = [
        *(block_size, num_kv_heads, f"{block:,}", f"`{pathway}`"),
        *(f"{ratio:.2f}" for ratio in moved),
        f"{other:,}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def header() -> str:
    shares = " | ".join(f"{share:.0%}" for share in LIVE)
    first = f"| block size | KV heads | bytes of a block | pathway | {shares} | other bytes |"
    return f"{first}\n{'| --- ' * (len(LIVE) + 5)}|"


def written() -> list[str]:
    match = TABLE.search(DOCUMENT.read_text(encoding="utf-8"))
    assert match is not None
    return match[2].splitlines()


def test_the_table_has_every_row() -> None:
    lines = written()

    assert "\n".join(lines[:2]) == header()
    cells = [tuple(cell.strip(" `") for cell in line.split("|")[1:5]) for line in lines[2:]]
    assert [(int(b), int(k), p) for b, k, _, p in cells] == ROWS


@pytest.mark.parametrize(
    "case", [case for case in ROWS if case[0] <= 16 or case[:2] == (64, 1)], ids=str
)
def test_the_table_is_up_to_date(case: tuple[int, int, str]) -> None:
    line = written()[2 + ROWS.index(case)]

    assert line == row(*case), "python tests/kernels/nki/test_bytes_table.py writes it"


def test_the_copying_pathway_moves_at_most_a_twentieth_more_than_needed() -> None:
    lines = [line.split("|") for line in written() if "`dma_copy`" in line]

    moved = [float(cell) for cells in lines for cell in cells[5 : 5 + len(LIVE)]]
    assert len(moved) == len(BLOCK_SIZES) * len(KV_HEADS) * len(LIVE)
    assert 1 <= min(moved) <= max(moved) <= MOST


def windowed_row(fp8: bool, window: int | None) -> str:
    """Return bytes of a request with 2,048 tokens in blocks of 16: its table is one fold wide."""
    step = DecodeStep(1, 2048, block_size=16, window=window, fp8=fp8)
    cost = decode_cost(step, "dma_copy", "trn2")
    cells = [
        "FP8" if fp8 else "bf16",
        "none" if window is None else f"{window:,}",
        step.live_blocks,
        f"{step.needed_bytes:,}",
        f"{cost.cache.moved_bytes / step.needed_bytes:.2f}",
        f"{cost.other_bytes:,}",
    ]
    return "| " + " | ".join(map(str, cells)) + " |"


def windows_table() -> str:
    header = "| cache | window | blocks | bytes of them | moved | other bytes |"
    rows = [windowed_row(*case) for case in WINDOWED_ROWS]
    return "\n".join([header, "| --- " * 6 + "|", *rows]) + "\n"


def test_the_table_of_windows_is_up_to_date() -> None:
    match = WINDOWS_TABLE.search(DOCUMENT.read_text(encoding="utf-8"))

    assert match is not None
    assert match[2] == windows_table(), "python tests/kernels/nki/test_bytes_table.py writes it"
    assert all(line.split("|")[5].strip() == "1.00" for line in match[2].splitlines()[2:])


def write() -> None:
    """Put the tables between their marks."""
    table = "\n".join([header(), *(row(*case) for case in ROWS)]) + "\n"
    text = DOCUMENT.read_text(encoding="utf-8")
    text = TABLE.sub(lambda m: m[1] + table + m[3], text)
    text = WINDOWS_TABLE.sub(lambda m: m[1] + windows_table() + m[3], text)
    DOCUMENT.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write()
