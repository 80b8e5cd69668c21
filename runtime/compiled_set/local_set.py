"""The set that an engine fills by itself: on the disk as far as the disk allows, else in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from ..errors import SetError
from .claims import Release
from .folder import SetFolder
from .key import key_digest
from .locking import ENGINE
from .manifest import ERRORS, GRAPHS, FileEntry, GraphEntry, Manifest

LOG = logging.getLogger(__name__)


class LocalSet:
    """A set that never stops an engine: what cannot be written stays in memory.

    The first thing that cannot be written is warned about, and nothing is written after it. What
    was published here can be read whatever becomes of the folder. One object is for any number of
    threads of one process, and reading never waits for those that write.

    Attributes:
        path: the folder.
        problem: why nothing is written any more; None while all is.
    """

    def __init__(self, path: Path, *, key: Mapping[str, object], num_blocks: Sequence[int]) -> None:
        """Open the set in ``path``, or begin it; see ``SetFolder.prepare``."""
        self.path = path
        self._mutex = threading.Lock()
        self._graphs: dict[str, GraphEntry] = {}
        self._data: dict[str, bytes] = {}
        self.problem: str | None = None
        self._folder: SetFolder | None = None
        self._blank = Manifest(key, tuple(num_blocks))

        def prepare() -> None:
            self._folder = SetFolder.prepare(path, key=key, num_blocks=num_blocks, patience=ENGINE)

        self._try_to(prepare)

    @property
    def manifest(self) -> Manifest:
        """What is in the folder and in memory."""
        on_disk = self._blank if self._folder is None else self._folder.manifest
        with self._mutex:
            return replace(on_disk, graphs={**on_disk.graphs, **self._graphs})

    @property
    def is_tidy(self) -> bool:
        """Whether nothing is in the folder but the set."""
        return self._folder is None or self._folder.is_tidy

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out, as far as the folder can be written; see ``SetFolder.locked``."""
        with ExitStack() as stack:
            self._try_to(lambda: stack.enter_context(self._open_folder.locked()))
            yield

    def claim(self, name: str) -> Release | None:
        """Claim the work on a graph, as far as the folder can be written; None if it is claimed."""
        claims: list[Release | None] = []
        self._try_to(lambda: claims.append(self._open_folder.claim(name)))
        return claims[0] if claims else _release_nothing

    def has(self, name: str, key: Mapping[str, object]) -> bool:
        """Tell whether a graph of this name and key is in memory, or in the folder and whole."""
        with self._mutex:
            graph = self._graphs.get(name)
        if graph is not None and graph.status == "done":
            return key_digest(graph.key) == key_digest(key)
        return self._folder is not None and self._folder.has(name, key)

    def read(self, name: str) -> bytes:
        """Return a compiled graph.

        Raises:
            DamagedFile: its file is missing or not as listed.
            SetError: there is none of this name, or it cannot be read.
        """
        with self._mutex:
            data = self._data.get(name)
        if data is not None:
            return data
        if self._folder is None:
            raise SetError(f"{self.path} has no graph {name}")
        return self._folder.read(name)

    def publish(
        self, name: str, data: bytes, *, key: Mapping[str, object], seconds: float, peak_bytes: int
    ) -> None:
        """Add a compiled graph, to memory at least."""
        entry = FileEntry.of(f"{GRAPHS}/{name}.graph", data)
        with self._mutex:
            self._graphs[name] = GraphEntry(name, "done", key, entry, float(seconds), peak_bytes)
            self._data[name] = data
        self._try_to(
            lambda: self._open_folder.publish(
                name, data, key=key, seconds=seconds, peak_bytes=peak_bytes
            )
        )

    def fail(
        self, name: str, error_text: str, *, key: Mapping[str, object], seconds: float
    ) -> None:
        """Keep the error of a graph, its first line at least; a whole graph stays."""
        entry = FileEntry.of(f"{ERRORS}/{name}.txt", error_text.encode("utf-8", "backslashreplace"))
        first = next(iter(error_text.strip().splitlines()), "")
        if not self.has(name, key):
            failed = GraphEntry(name, "failed", key, entry, float(seconds), 0, first)
            with self._mutex:
                self._graphs[name] = failed
        self._try_to(lambda: self._open_folder.fail(name, error_text, key=key, seconds=seconds))

    def keep_file(self, path: str, data: bytes) -> None:
        """Add a file that is no graph, unless there is one of this path, and whole."""
        if path in self.manifest.files:
            try:
                self._open_folder.read_file(path)
                return
            except SetError as error:
                LOG.warning("%s; it is made again", error)
        self.publish_file(path, data)

    def publish_file(self, path: str, data: bytes) -> None:
        """Add or replace a file that is no graph, where the folder can be written."""
        self._try_to(lambda: self._open_folder.publish_file(path, data))

    def record(self, facts: Mapping[str, object]) -> None:
        """Add to the facts of the manifest, where the folder can be written."""
        self._try_to(lambda: self._open_folder.record(facts))

    @property
    def _open_folder(self) -> SetFolder:
        assert self._folder is not None, "a folder that was never opened is not written"
        return self._folder

    def _try_to(self, write: Callable[[], object]) -> None:
        """Write, unless that has failed before; the first failure is warned about."""
        if self.problem is not None:
            return
        try:
            write()
        except SetError as error:
            with self._mutex:
                is_first = self.problem is None
                self.problem = self.problem or str(error)
            if is_first:
                LOG.warning("%s; what is compiled from now on is kept in memory only", error)


def _release_nothing() -> None:
    """Release the claim of who has a set to itself."""
