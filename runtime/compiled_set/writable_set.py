"""What compiles into a set and loads from it asks of the set, wherever that keeps its graphs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Protocol

from .claims import Release
from .manifest import Manifest


class WritableSet(Protocol):
    """A compiled set that is read and filled: ``SetFolder``, or a ``LocalSet``."""

    @property
    @abstractmethod
    def path(self) -> Path:
        """The folder of the set, which messages name."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """What is in it."""

    @property
    @abstractmethod
    def is_tidy(self) -> bool:
        """Whether nothing is in the folder but the set."""

    def locked(self) -> AbstractContextManager[None]:
        """Keep other writers out and see what they have published; waits for them."""

    def claim(self, name: str) -> Release | None:
        """Claim the work on a graph, see ``take_claim``; None if somebody is at it."""

    def has(self, name: str, key: Mapping[str, object]) -> bool:
        """Tell whether a graph of this name and key is there and whole."""

    def read(self, name: str) -> bytes:
        """Return a compiled graph; SetError if there is none, DamagedFile if it is not whole."""

    def publish(
        self, name: str, data: bytes, *, key: Mapping[str, object], seconds: float, peak_bytes: int
    ) -> None:
        """Add a compiled graph; one of this name and key that is there and whole stays."""

    def fail(
        self, name: str, error_text: str, *, key: Mapping[str, object], seconds: float
    ) -> None:
        """Keep the error of a graph; a whole graph stays."""

    def publish_file(self, path: str, data: bytes) -> None:
        """Add or replace a file that is no graph."""

    def record(self, facts: Mapping[str, object]) -> None:
        """Add to the facts of the manifest."""
