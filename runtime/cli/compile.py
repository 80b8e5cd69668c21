"""``noria compile``: every graph of a configuration, into a set or in this process only."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..config import load_config
from .failures import EXIT_STATUSES, SOME_FAILED, UserMistake
from .output_paths import OutputPath
from .progress import Progress, show_progress
from .set_progress import show_graphs
from .set_tables import graphs_text, set_text
from .tables import format_table, size_text

if TYPE_CHECKING:
    from ..config import Config
    from ..loading import LoadedEngine


@click.command("compile", epilog=EXIT_STATUSES)
@click.argument("config", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="DIR",
    type=OutputPath(),
    help="Write a compiled set to this folder; what is there already is not compiled again.",
)
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    help="Processes that compile, with -o; at most one per CPU and per 512 MiB of free memory.",
)
def compile_graphs(config: Path, output: Path | None, workers: int | None) -> None:
    """Compile every graph of a configuration.

    With -o DIR, graphs go into a compiled set, which has no weights. What any request can be run
    with comes first. Worker processes compile them: as many as --workers, as there are CPUs, or
    as free memory has 512 MiB, whichever is least. A graph that fails does not stop the others;
    the whole error is in DIR/errors. Interrupted, run it again: only what is missing is compiled.
    Several may write to one folder at once.

    Without -o, graphs are loaded from the local set, which keeps what is compiled, and run once:
    the next start finds them. Shows the seconds of each graph, whether logits are the same bits
    in all of them, and the memory that weights and KV cache take.
    """
    settings = load_config(config)
    if output is not None:
        _compile_set(settings, output, workers)
    elif workers is not None:
        raise UserMistake("--workers: only with -o, which compiles in processes of their own")
    else:
        _compile_here(settings)


def _compile_set(config: Config, path: Path, workers: int | None) -> None:
    """Compile what the set lacks; exit with SOME_FAILED if it lacks some of it still."""
    from ..compiled_set.compiling import compile_set

    start = time.monotonic()
    with show_graphs() as report:
        compiled = compile_set(config, path, workers=workers, report=report)
    click.echo(graphs_text(compiled.graphs))
    click.echo()
    click.echo(set_text(compiled, time.monotonic() - start))
    for graph in compiled.failed:
        entry = compiled.folder.manifest.graphs[graph.name]
        click.echo(f"{graph.name} failed: {graph.error} ({path / entry.file.path})", err=True)
    if compiled.failed:
        click.get_current_context().exit(SOME_FAILED)


def _compile_here(settings: Config) -> None:
    from ..llm import LLM

    with show_progress("compile") as progress:
        stopwatch = _Stopwatch(progress)
        llm = LLM(settings, progress=stopwatch)
        if num_pending := llm.loaded.arrivals.num_pending:
            stopwatch(f"{num_pending} more, by workers", 0, num_pending)
            llm.wait_for_graphs()
        stopwatch("warm", 0, 0)
    loaded = llm.loaded
    click.echo(_seconds_text(stopwatch.laps()))
    click.echo()
    click.echo(_pool_text(settings, loaded))
    click.echo(_memory_text(settings, loaded))
    click.echo(str(loaded.invariance))
    click.echo(_kept_text(loaded))


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


def _kept_text(loaded: LoadedEngine) -> str:
    kept = loaded.local_set
    if kept is None:
        return "Nothing was written to disk: -o DIR writes a compiled set."
    if kept.problem is not None:
        return f"Some graphs could not be kept in the local set: {kept.problem}"
    return f"The graphs are in the local set {kept.path}: the next start finds them there."


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
