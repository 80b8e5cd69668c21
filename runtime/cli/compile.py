"""``noria compile``: build and warm every graph, and report what that took."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import load_config
from .progress import Progress, show_progress
from .tables import format_table, size_text

if TYPE_CHECKING:
    from ..config import Config
    from ..loading import LoadedEngine


@click.command("compile")
@click.argument("config", type=click.Path(path_type=Path))
def compile_graphs(config: Path) -> None:
    """Compile and run every graph of a configuration once.

    Shows the seconds of each graph, whether logits are the same bits in all of them, and the
    memory that weights and KV cache take. Nothing is written to disk yet.
    """
    settings = load_config(config)
    from ..llm import LLM

    with show_progress("compile") as progress:
        stopwatch = _Stopwatch(progress)
        loaded = LLM(settings, progress=stopwatch).loaded
        stopwatch("warm", 0, 0)
    click.echo(_seconds_text(stopwatch.laps()))
    click.echo()
    click.echo(_pool_text(settings, loaded))
    click.echo(_memory_text(settings, loaded))
    click.echo(str(loaded.invariance))
    click.echo("Nothing was written to disk: compiled graphs live as long as their process.")


class _Stopwatch:
    """Notes when each graph begins, and passes the call on."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._marks = [("load", time.monotonic())]

    def __call__(self, label: str, num_done: int, total: int) -> None:
        # The call after the last graph opens the lap in which all of them run for the first time.
        self._marks.append(("warm-up" if num_done == total else label, time.monotonic()))
        self._progress(label, num_done, total)

    def laps(self) -> list[tuple[str, float]]:
        """Return label and seconds of everything that has ended."""
        return [(label, end - start) for (label, start), (_, end) in pairwise(self._marks)]


def _seconds_text(laps: Sequence[tuple[str, float]]) -> str:
    total_s = sum(seconds for _, seconds in laps)
    rows = [(label, f"{seconds:.2f}") for label, seconds in (*laps, ("in all", total_s))]
    return format_table(("graph", "seconds"), rows)


def _pool_text(config: Config, loaded: LoadedEngine) -> str:
    size = loaded.cache_size
    listed = " + ".join(map(str, size.num_blocks))
    tokens = " + ".join(str((count - 1) * config.block_size) for count in size.num_blocks)
    return (
        f"num_blocks {listed} ({size.reason}): {tokens} tokens in blocks of "
        f"{config.block_size}, and the null block"
    )


def _memory_text(config: Config, loaded: LoadedEngine) -> str:
    return (
        f"memory: weights {size_text(loaded.model.weight_bytes)} (packed, {config.dtype}), "
        f"KV cache {size_text(loaded.cache.num_bytes)}"
    )
