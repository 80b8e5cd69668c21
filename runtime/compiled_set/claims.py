"""Claims on the graphs of a set: who compiles what, so that nobody compiles the same.

A claim is a locked file in the folder of the set. The lock ends with the process that holds it,
whatever ends that; a file without a lock claims nothing.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .locking import holder, unlock
from .staging import writing

CLAIM = ".claim-"
"""What the names of these files begin with."""

Release = Callable[[], None]
"""Ends a claim; to be called once."""


def take_claim(folder: Path, name: str) -> Release | None:
    """Claim a graph; None if somebody has claimed it, in this process or another.

    Whether the graph is there must be asked after this: somebody may have published it, and
    released it, just before.

    Raises:
        SetError: the folder cannot be written.
    """
    path = folder / f"{CLAIM}{name}"
    with writing(path):
        while True:
            number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            if not _lock(number):
                return None
            if _is_there(path, number):
                return lambda: _release(path, number)
            os.close(number)  # somebody has released it between the two


def claimant(folder: Path, name: str) -> str:
    """Say which process has claimed a graph, as far as the system tells."""
    return holder(folder / f"{CLAIM}{name}")


def remove_free_claims(folder: Path) -> None:
    """Remove the files of claims whose holders have died.

    Raises:
        SetError: the folder cannot be written.
    """
    for path in folder.glob(f"{CLAIM}*"):
        with writing(path), suppress(FileNotFoundError):
            number = os.open(path, os.O_RDWR)
            if _lock(number):
                _release(path, number)


def _lock(number: int) -> bool:
    """Lock an open file, or close it if somebody else has locked it."""
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(number)
        return False
    except BaseException:
        os.close(number)
        raise
    return True


def _is_there(path: Path, number: int) -> bool:
    """Tell whether the file still has its name; only who has locked it may take that away."""
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except FileNotFoundError:
        return False


def _release(path: Path, number: int) -> None:
    """Take the name away first: who opens it from now on opens another file."""
    try:
        if _is_there(path, number):
            with suppress(OSError):  # a file without a lock claims nothing
                path.unlink()
    finally:
        unlock(number)
