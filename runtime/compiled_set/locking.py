"""The lock of a set's folder: one writer at a time, gone with the process that holds it."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..errors import SetError
from .staging import writing

LOG = logging.getLogger(__name__)
LOCK = ".lock"
LISTED_LOCKS = Path("/proc/locks")
SHORTEST_S, LONGEST_S = 0.002, 0.05
"""Between two tries to lock: the first time, and when it takes long."""


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a lock is waited for that somebody holds.

    Holders write some files and let go, but one may be stopped, or wait for a disk itself.

    Attributes:
        limit_s: until that is an error.
        told_after_s: until a warning says who is waited for.
    """

    limit_s: float
    told_after_s: float


COMMAND = Patience(limit_s=600.0, told_after_s=2.0)
"""Of who is there to write a set, and of whom somebody sees what it says."""
ENGINE = Patience(limit_s=5.0, told_after_s=5.0)
"""Of who serves without the set, too."""


@contextmanager
def write_lock(folder: Path, patience: Patience = COMMAND) -> Iterator[None]:
    """Hold the lock of ``folder``, which must be there; waits for it.

    A process that is forked meanwhile holds it too, until the block ends here; one that is
    spawned does not.

    Raises:
        SetError: nothing can be written there, or somebody holds the lock for too long.
    """
    with writing(folder):
        number = _acquire(folder / LOCK, patience)
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


def holder(path: Path) -> str:
    """Say which process has locked a file, as far as the system tells."""
    try:
        found = path.stat()
        listed = LISTED_LOCKS.read_text()
    except OSError:
        return "another process"
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    held = re.search(rf"^\d+: FLOCK +\S+ +\S+ +(\d+) {place} ", listed, re.MULTILINE)
    return "another process" if held is None else f"process {held[1]}"


def unlock(number: int) -> None:
    """End the lock of an open file, and close it; processes forked meanwhile have it open still."""
    try:
        fcntl.flock(number, fcntl.LOCK_UN)
    finally:
        os.close(number)


def _acquire(path: Path, patience: Patience) -> int:
    """Return the open and locked file, which still has its name: folders can be removed."""
    # Counted by its pauses: a process that was stopped itself has not waited meanwhile.
    waited_s, pause_s, is_told = 0.0, SHORTEST_S, False
    while True:
        number = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            is_locked = _lock(number)
            if is_locked and _has_name(number, path):
                return number
            if not is_locked and waited_s >= patience.limit_s:
                raise SetError(f"{path} has been locked for {waited_s:.0f} s by {holder(path)}")
            if not is_told and not is_locked and waited_s >= patience.told_after_s:
                LOG.warning("%s is locked by %s, which is waited for", path, holder(path))
                is_told = True
        except BaseException:
            os.close(number)
            raise
        os.close(number)
        if is_locked:
            continue  # a file that has lost its name
        time.sleep(pause_s)
        waited_s += pause_s
        pause_s = min(2 * pause_s, LONGEST_S)


def _lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _has_name(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), os.stat(path))
    except FileNotFoundError:
        return False


def _share(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
