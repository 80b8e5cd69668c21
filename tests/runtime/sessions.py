"""Which processes are left of a session: those of a command, and all that they started."""

from __future__ import annotations

import time
from pathlib import Path

TIMEOUT_S = 600


def members(session: int) -> set[int]:
    """Return the processes of a session that have not ended."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has just ended
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.add(int(path.parent.name))
    return found


def wait_until_ended(session: int) -> None:
    """Wait until nobody is left of a session, which must be soon."""
    end = time.monotonic() + TIMEOUT_S
    while left := members(session):
        assert time.monotonic() < end, left
        time.sleep(0.02)
