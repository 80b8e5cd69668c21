"""Files that appear whole or not at all, also when the process is killed or the disk is full.

A file is staged under a name that begins with ``STAGED`` in the folder where it will be, and one
rename makes it appear.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import SetError

STAGED = ".staged-"


def fault_point(name: str) -> None:
    """Do nothing; tests put in its place what ends the process here."""


def stage(path: Path, data: bytes, kind: str) -> Path:
    """Write ``data`` to the disk beside ``path`` and return where; remove it after an error.

    Args:
        path: what the file will be called.
        data: all of it.
        kind: begins the names of the fault points; two of a kind are never staged for one path.
    """
    staged = path.with_name(f"{STAGED}{kind}-{path.name}")
    fault_point(f"{kind}.before_writing")
    try:
        with staged.open("wb") as file:
            fault_point(f"{kind}.opened")
            file.write(data[: len(data) // 2])
            file.flush()
            fault_point(f"{kind}.half_written")
            file.write(data[len(data) // 2 :])
            file.flush()
            fault_point(f"{kind}.written")
            os.fsync(file.fileno())
    except OSError:
        with suppress(OSError):
            staged.unlink()
        raise
    fault_point(f"{kind}.staged")
    return staged


def appear(staged: Path, path: Path, kind: str) -> None:
    """Rename what was staged to ``path``, for good when this returns."""
    fault_point(f"{kind}.before_rename")
    staged.replace(path)
    fault_point(f"{kind}.renamed")
    sync_folder(path.parent)
    fault_point(f"{kind}.durable")


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the system refuses into one line that names ``path``."""
    try:
        yield
    except OSError as error:
        raise SetError(f"{path} cannot be written: {error.strerror or error}") from error
