"""The lock of a set's folder: one writer at a time, gone with the process that holds it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .staging import writing

LOCK = ".lock"


@contextmanager
def write_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of ``folder``, which must be there; waits for it.

    A process that is forked meanwhile holds it too, until the block ends here; one that is
    spawned does not.

    Raises:
        SetError: nothing can be written there.
    """
    with writing(folder):
        number = _acquire(folder / LOCK)
    try:
        yield
    finally:
        unlock(number)


@contextmanager
def quiet(folder: Path) -> Iterator[bool]:
    """Keep writers out if none is in; yields whether that is so. Writes nothing."""
    try:
        number = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        yield True
        return
    try:
        yield _share(number)
    finally:
        unlock(number)


def unlock(number: int) -> None:
    """End the lock of an open file, and close it; processes forked meanwhile have it open still."""
    try:
        fcntl.flock(number, fcntl.LOCK_UN)
    finally:
        os.close(number)


def _acquire(path: Path) -> int:
    """Return the open and locked file, which still has its name: folders can be removed."""
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(number), os.stat(path)):
                return number
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(number)
            raise
        os.close(number)


def _share(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
