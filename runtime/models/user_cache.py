"""Where fetched and converted models live, and how a finished one appears there."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def user_cache() -> Path:
    """Return ``$XDG_CACHE_HOME/noria``, or ``~/.cache/noria`` where that is unset or relative."""
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".cache") / "noria"


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock of ``target``, which one process or thread has at a time; waits for it.

    The lock is an empty file beside ``target`` and ends with the process that holds it.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def staged_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes ``target`` when the block ends without an error.

    The change is one rename on one file system: readers see the whole folder or none. A
    ``target`` that is there already is replaced; after an error it stays as it was. Callers hold
    ``locked(target)``; what a process that died has left is removed.
    """
    scratch = target.parent / f".{target.name}.staged"
    shutil.rmtree(scratch, ignore_errors=True)
    staged = scratch / "new"
    staged.mkdir(parents=True)
    try:
        yield staged
        _replace(staged, target, scratch / "old")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _replace(staged: Path, target: Path, aside: Path) -> None:
    """Rename ``staged`` to ``target``, moving an older folder out of the way."""
    try:
        staged.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        target.rename(aside)
        staged.rename(target)
