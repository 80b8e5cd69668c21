"""How long each part of a piece of work takes."""

from __future__ import annotations

import time
from collections.abc import Mapping


class Stopwatch:
    """Notes the seconds of parts that follow each other."""

    def __init__(self) -> None:
        """Begin the first part."""
        self._seconds: dict[str, float] = {}
        self._begun = time.perf_counter()

    def end(self, part: str) -> None:
        """End the part that runs, under this name, and begin the next."""
        now = time.perf_counter()
        self._seconds[part] = self._seconds.get(part, 0.0) + now - self._begun
        self._begun = now

    @property
    def seconds(self) -> Mapping[str, float]:
        """Seconds of every part that has ended, in order."""
        return dict(self._seconds)
