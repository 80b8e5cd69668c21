"""Commands for compiled sets that are there: check them, ship them, and keep the cache small."""

from __future__ import annotations

from pathlib import Path

import click

from .failures import EXIT_STATUSES, SOME_FAILED, UserMistake
from .output_paths import OutputPath
from .set_tables import count_text, manifest_text, num_bytes, num_text
from .tables import format_table, size_text

PATH = click.Path(path_type=Path)
DAY_S = 86400


@click.command(epilog=EXIT_STATUSES)
@click.argument("folder", metavar="DIR", type=PATH)
def verify(folder: Path) -> None:
    """Check a compiled set.

    Every file is compared with the size and sha256 that the manifest lists, and the manifest
    with its own. Prints a line for everything that is damaged, missing, failed to compile or is
    not part of the set; then the exit status is 1.
    """
    from ..compiled_set.folder import SetFolder
    from ..compiled_set.workers import missing_graphs
    from ..errors import DamagedFile

    if not folder.is_dir():
        raise UserMistake(f"{folder} is no folder")
    try:
        found = SetFolder.open(folder)
    except DamagedFile as error:
        click.echo(str(error))
        click.get_current_context().exit(SOME_FAILED)
    missing = [f"{folder}: {name} is not compiled" for name in missing_graphs(found.manifest)]
    problems = found.verify() + missing
    for problem in problems:
        click.echo(problem)
    if problems:
        click.get_current_context().exit(SOME_FAILED)
    size = size_text(num_bytes(found.manifest))
    click.echo(f"OK {folder}: {count_text(found.manifest)}, {size}")


@click.command()
@click.argument("folder", metavar="DIR", type=PATH)
@click.argument("file", type=OutputPath())
def bundle(folder: Path, file: Path) -> None:
    """Make one file of a compiled set, for shipping.

    It is a tar archive, compressed if its name ends with .gz or .tgz. The same set gives the
    same bytes, always and everywhere. A damaged set is refused.
    """
    from ..compiled_set.bundle import write_bundle
    from ..compiled_set.folder import SetFolder

    found = SetFolder.open(folder)
    write_bundle(found, file)
    click.echo(f"{file}: {count_text(found.manifest)}, {size_text(file.stat().st_size)}")


@click.command()
@click.argument("file", type=PATH)
@click.argument("folder", metavar="DIR", type=OutputPath())
def unbundle(file: Path, folder: Path) -> None:
    """Make a compiled set of a bundle.

    DIR must not be there, or be empty. Everything is checked before it appears.
    """
    from ..compiled_set.bundle import read_bundle

    made = read_bundle(file, folder)
    size = size_text(num_bytes(made.manifest))
    click.echo(f"{folder}: {count_text(made.manifest)}, {size}")


@click.group()
def cache() -> None:
    """Look after the compiled sets in the local cache.

    They are in $NORIA_SETS, or in $XDG_CACHE_HOME/noria/sets or ~/.cache/noria/sets, one folder
    per key. Engines fill them; NORIA_SETS= keeps none.
    """


def _sets_folder() -> Path:
    from ..compiled_set.local_cache import sets_folder

    folder = sets_folder()
    if folder is None:
        raise UserMistake("there are no local sets: NORIA_SETS is empty, or there is no home")
    return folder


@cache.command("ls")
def list_sets() -> None:
    """List the sets, the last changed one first, and check their files."""
    from ..compiled_set.local_cache import SHORT, cached_sets

    rows = [
        (
            one.key[:SHORT],
            one.model,
            "-" if one.manifest is None else count_text(one.manifest),
            size_text(one.num_bytes),
            f"{one.age_s / DAY_S:.0f} days",
            "damaged" if one.problem else "whole",
        )
        for one in cached_sets(_sets_folder())
    ]
    if rows:
        click.echo(format_table(("key", "model", "graphs", "size", "age", "state"), rows))
    else:
        click.echo(f"{_sets_folder()}: no sets")


@cache.command("gc")
@click.option(
    "--older-than",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    help="Remove also what has not changed for so many days.",
)
@click.option("--all", "remove_all", is_flag=True, help="Remove every set.")
@click.option("--dry-run", is_flag=True, help="Remove nothing, only say what would be.")
def collect(older_than: float | None, remove_all: bool, dry_run: bool) -> None:
    """Remove sets that are of no use.

    Those are damaged ones, and those that another version of the code or of torch, or another
    kind of machine, has made. A set that is being written is removed when that ends.
    """
    from ..compiled_set.local_cache import (
        SHORT,
        cached_sets,
        remove_leftovers_of,
        remove_set,
        useless,
    )

    freed, num_left = 0, 0
    for one in cached_sets(_sets_folder()):
        reason = "all are" if remove_all else useless(one, max_age_days=older_than)
        if reason is None:
            num_left += 1
            continue
        if not dry_run:
            remove_set(one.path)
        freed += one.num_bytes
        verb = "would be removed" if dry_run else "removed"
        click.echo(f"{one.key[:SHORT]} {verb}: {reason}, {size_text(one.num_bytes)}")
    if not dry_run:
        remove_leftovers_of(_sets_folder())
    ending = "to be freed" if dry_run else "freed"
    click.echo(f"{size_text(freed)} {ending}, {num_text(num_left, 'set')} left")


@cache.command()
@click.argument("key")
def show(key: str) -> None:
    """Show a set: its graphs, and every field of its key.

    KEY is the beginning of a key that noria cache ls lists.
    """
    from ..compiled_set.local_cache import find_set

    found = find_set(_sets_folder(), key)
    click.echo(f"{found.path}: {found.problem or 'whole'}\n")
    if found.manifest is None:
        click.get_current_context().exit(SOME_FAILED)
    click.echo(manifest_text(found.manifest))
