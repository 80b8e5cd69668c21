"""Run a file of prompts in shards, one per instance of an array job, and merge the results.

The jobs in this folder start it; they have not been run. This script is tested, on a CPU.

    python shards.py run prompts.jsonl results --count 8 -- noria generate config.yaml
    python shards.py merge results all.jsonl

A shard is a range of the prompts that follows from their number, ``--index`` and ``--count``. Its
results are in ``results/INDEX-of-COUNT.jsonl`` once all of them are there: then it is finished,
and running it again does nothing. Remove that file to run it again.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from noria.runtime.cli.prompt_file import numbered_lines
from noria.runtime.errors import NoriaError
from noria.runtime.text_files import text_suffix

ALL_DONE = (0, 1)
"""Exit statuses of ``noria generate`` with a result for every prompt; 1: some are errors."""
RUN_FILE = "run.json"


class Refused(click.ClickException):
    """What the user can mend, in one line."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Run:
    """What all shards of a folder have in common."""

    prompts_sha256: str
    num_prompts: int
    num_shards: int
    command: list[str]

    def range_of(self, index: int) -> range:
        """Return the prompts of a shard, from 0: all shards differ by one in size at most."""
        first, end = (one * self.num_prompts // self.num_shards for one in (index, index + 1))
        return range(first, end)

    def results_of(self, index: int, folder: Path) -> Path:
        """Return the file that is there when a shard is finished."""
        return folder / f"{index:05}-of-{self.num_shards:05}.jsonl"


@click.group()
def main() -> None:
    """Run a file of prompts in shards, and merge the results."""


@main.command()
@click.argument("prompts", type=click.Path(path_type=Path))
@click.argument("results", type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--index",
    required=True,
    type=click.IntRange(min=0),
    envvar=["JOB_COMPLETION_INDEX", "AWS_BATCH_JOB_ARRAY_INDEX"],
    show_envvar=True,
    help="Of the shard, from 0.",
)
@click.option(
    "--count",
    required=True,
    type=click.IntRange(min=1),
    envvar="AWS_BATCH_JOB_ARRAY_SIZE",
    show_envvar=True,
    help="Of all shards. An Indexed Job has no variable for it.",
)
def run(prompts: Path, results: Path, command: Sequence[str], index: int, count: int) -> None:
    """Run one shard of PROMPTS by COMMAND, noria generate without --prompts and -o."""
    if index >= count:
        raise Refused(f"--index {index}: with --count {count}, the last one is {count - 1}")
    try:
        lines = list(numbered_lines(prompts))
    except NoriaError as error:
        raise Refused(str(error)) from error
    this = Run(_digest(lines), len(lines), count, list(command))
    _agree(this, results)
    finished = this.results_of(index, results)
    if finished.exists():
        click.echo(f"{finished}: finished already", err=True)
        return
    wanted = this.range_of(index)
    with _unfinished(finished) as part:
        _generate(command, lines[wanted.start : wanted.stop], text_suffix(prompts), part)
        texts = _in_order(part, wanted, wanted.start)
        _agree(this, results)
        _write(finished, "".join(texts))
    click.echo(f"{finished}: {len(wanted)} results", err=True)


@main.command()
@click.argument("results", type=click.Path(path_type=Path))
@click.argument("output", type=click.Path(path_type=Path))
def merge(results: Path, output: Path) -> None:
    """Write the results of all shards to OUTPUT, in the order of the prompts.

    The exit status is 1 if some of them are errors.
    """
    whole = _run_of(results)
    files = [whole.results_of(index, results) for index in range(whole.num_shards)]
    missing = [str(index) for index, file in enumerate(files) if not file.exists()]
    if missing:
        raise Refused(
            f"{results}: {len(missing)} of {len(files)} shards are not finished: "
            f"{', '.join(missing[:20])}{', ...' if missing[20:] else ''}"
        )
    num_errors = 0
    with _unfinished(output) as part:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            for index, source in enumerate(files):
                texts = _in_order(source, whole.range_of(index), 0)
                num_errors += sum(json.loads(text)["error"] is not None for text in texts)
                file.writelines(texts)
        os.replace(part, output)
    click.echo(f"{output}: {whole.num_prompts} results, {num_errors} of them errors", err=True)
    if num_errors:
        click.get_current_context().exit(1)


def _digest(lines: Sequence[tuple[int, bytes]]) -> str:
    """Return a hash of numbers and texts of lines."""
    found = hashlib.sha256()
    for number, data in lines:
        found.update(b"%d %d " % (number, len(data)) + data)
    return found.hexdigest()


def _agree(run: Run, folder: Path) -> None:
    """Note a run in its folder, or refuse a folder of another one."""
    path = folder / RUN_FILE
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _write(path, json.dumps(asdict(run), indent=2) + "\n")
    theirs = asdict(_run_of(folder))
    differ = [name for name, value in asdict(run).items() if theirs[name] != value]
    if differ:
        raise Refused(f"{path}: of a run with other {', '.join(differ)}; name another folder")


def _run_of(folder: Path) -> Run:
    path = folder / RUN_FILE
    try:
        return Run(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise Refused(f"{path}: says of no run: {error}") from error


def _generate(
    command: Sequence[str], lines: Sequence[tuple[int, bytes]], suffix: str, part: Path
) -> None:
    """Run lines of the prompt file by a command that writes to ``part``.

    They keep their numbers, which errors name: the lines of other shards are blank.
    """
    if not lines:
        return
    with tempfile.TemporaryDirectory() as folder:
        shard = Path(folder, f"shard{suffix}")
        with shard.open("wb") as file:
            last = 0
            for number, data in lines:
                file.write(b"\n" * (number - last - 1) + data + b"\n")
                last = number
        done = subprocess.run([*command, "--prompts", str(shard), "-o", str(part)])
    if done.returncode not in ALL_DONE:
        sys.exit(done.returncode if done.returncode > 0 else 128 - done.returncode)


def _in_order(path: Path, wanted: range, first: int) -> list[str]:
    """Return lines of results, one for each prompt of ``wanted``, in that order.

    ``first`` is what index 0 of the file is in the whole file of prompts.
    """
    with path.open(encoding="utf-8", newline="\n") as file:
        records = [json.loads(line) for line in file]
    for record in records:
        record["index"] += first
    records.sort(key=lambda record: record["index"])
    if [record["index"] for record in records] != list(wanted):
        raise Refused(f"{path}: {len(records)} results, not one for each of {len(wanted)} prompts")
    return [json.dumps(record, ensure_ascii=False) + "\n" for record in records]


@contextmanager
def _unfinished(path: Path) -> Iterator[Path]:
    """Yield a new, empty file beside another one; it does not stay there."""
    with tempfile.NamedTemporaryFile(
        dir=path.parent, prefix=f".{path.name}-", delete=False
    ) as file:
        part = Path(file.name)
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    """Make a file that is there as a whole or not at all."""
    with _unfinished(path) as part:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)


if __name__ == "__main__":
    main()
