"""The folder of a compiled set: what is published appears whole, and what is read is checked.

Every listed file is on the disk before the manifest that lists it, and a listed file changes only
after a manifest without it. So whatever ends a writer, all that the manifest lists is there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import DamagedFile, ForeignFile, SetError
from .claims import Release, take_claim
from .key import key_differences, key_digest
from .leftovers import has_leftovers, remove_leftovers, strays
from .locking import COMMAND, LOCK, Patience, quiet, write_lock
from .manifest import ERRORS, GRAPHS, MANIFEST, FileEntry, GraphEntry, Manifest
from .manifest_file import begin_manifest, read_manifest, write_manifest
from .staging import appear, fault_point, stage, sync_folder, writing


class SetFolder:
    """A compiled set on disk.

    One object is for one process and any of its threads. Reading needs no lock. Every change
    takes the lock, reads the manifest again and writes it.

    Attributes:
        path: the folder.
        manifest: as it was last read or written here.
    """

    def __init__(self, path: Path, manifest: Manifest, patience: Patience = COMMAND) -> None:
        """Stand for a folder that has this manifest; see ``open`` and ``prepare``."""
        self.path = path
        self._patience = patience
        self.manifest = manifest
        self._mutex = threading.RLock()
        self._is_locked = False

    @classmethod
    def open(cls, path: Path) -> SetFolder:
        """Return the set in ``path``.

        Raises:
            DamagedFile: the manifest is missing or damaged.
            SetError: it is of a newer format, none of a set, or cannot be read.
        """
        return cls(path, read_manifest(path))

    @classmethod
    def prepare(
        cls,
        path: Path,
        *,
        key: Mapping[str, object],
        num_blocks: Sequence[int],
        patience: Patience = COMMAND,
    ) -> SetFolder:
        """Return the set in ``path``, or begin one where there is none or a damaged manifest.

        Waits for other writers with ``patience``, here and later.

        Raises:
            SetError: the set there is for another key, the folder is of something else, or it
                cannot be written.
        """
        wanted = Manifest(key, tuple(num_blocks))
        try:
            manifest = read_manifest(path)
        except (DamagedFile, ForeignFile) as error:
            if isinstance(error, ForeignFile) and not (path / LOCK).is_file():
                raise  # no set was ever here
            manifest = begin_manifest(path, wanted, patience)
        if key_digest(manifest.key) != key_digest(wanted.key):
            differences = "; ".join(key_differences(manifest.key, wanted.key))
            raise SetError(f"{path} is a set for other settings: {differences}")
        if () != manifest.num_blocks != wanted.num_blocks != ():
            raise SetError(
                f"{path} is a set for other settings: num_blocks: {list(manifest.num_blocks)} in "
                f"the set, {list(wanted.num_blocks)} here"
            )
        return cls(path, manifest, patience)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other writers out and see what they have published; waits for them.

        Within a thread it may be entered again. What dead writers have left is removed.

        Raises:
            SetError: the folder cannot be written, or its manifest cannot be read.
        """
        with self._mutex:
            if self._is_locked:
                yield
                return
            with write_lock(self.path, self._patience):
                fault_point("lock.held")
                self.manifest = read_manifest(self.path)
                remove_leftovers(self.path, self.manifest.all_files)
                self._is_locked = True
                try:
                    yield
                finally:
                    self._is_locked = False

    @property
    def is_tidy(self) -> bool:
        """Whether nothing is in the folder but the set: who writes, or died at it, leaves files."""
        return not has_leftovers(self.path, self.manifest.all_files)

    def claim(self, name: str) -> Release | None:
        """Claim the work on a graph, see ``take_claim``; None if somebody is at it.

        Raises:
            SetError: the folder cannot be written.
        """
        return take_claim(self.path, name)

    def has(self, name: str, key: Mapping[str, object]) -> bool:
        """Tell whether a graph of this name and key is listed and its file is as listed."""
        graph = self.manifest.graphs.get(name)
        if graph is None or graph.status != "done" or key_digest(graph.key) != key_digest(key):
            return False
        return self._problem(graph.file) is None

    def read(self, name: str) -> bytes:
        """Return a compiled graph.

        Raises:
            DamagedFile: its file is missing or not as listed.
            SetError: there is none of this name, or it cannot be read.
        """
        graph = self.manifest.graphs.get(name)
        if graph is None or graph.status != "done":
            why = "" if graph is None else f": compiling it failed: {graph.error}"
            raise SetError(f"{self.path} has no graph {name}{why}")
        return self._checked(graph.file)

    def has_file(self, path: str) -> bool:
        """Tell whether a file of this path is listed and as listed."""
        entry = self.manifest.all_files.get(path)
        return entry is not None and self._problem(entry) is None

    def read_file(self, path: str) -> bytes:
        """Return any listed file; raises as ``read`` does."""
        entry = self.manifest.all_files.get(path)
        if entry is None:
            raise SetError(f"{self.path} does not list {path}")
        return self._checked(entry)

    def publish(
        self, name: str, data: bytes, *, key: Mapping[str, object], seconds: float, peak_bytes: int
    ) -> None:
        """Add a compiled graph; one of this name and key that is there and whole stays.

        Raises:
            SetError: it cannot be written; the set is as it was.
        """
        entry = FileEntry.of(f"{GRAPHS}/{name}.graph", data)
        graph = GraphEntry(name, "done", key, entry, float(seconds), peak_bytes)
        self._publish_graph(graph, data)

    def fail(
        self, name: str, error_text: str, *, key: Mapping[str, object], seconds: float
    ) -> None:
        """Keep the error of a graph, its first line in the manifest; a whole graph stays.

        Raises:
            SetError: it cannot be written; the set is as it was.
        """
        data = error_text.encode("utf-8", "backslashreplace")
        entry = FileEntry.of(f"{ERRORS}/{name}.txt", data)
        first = next(iter(error_text.strip().splitlines()), "")
        self._publish_graph(GraphEntry(name, "failed", key, entry, float(seconds), 0, first), data)

    def publish_file(self, path: str, data: bytes) -> None:
        """Add or replace a file that is no graph; nothing is written if it is there and whole.

        Raises:
            SetError: it cannot be written, or the path is none for a file of a set.
        """
        entry = FileEntry.of(path, data)
        assert path.split("/")[0] not in (GRAPHS, ERRORS), path
        if self.manifest.files.get(path) == entry and self.has_file(path):
            return
        with self.locked():
            files = {**self.manifest.files, path: entry}
            if self.manifest.files.get(path) != entry or not self.has_file(path):
                self._put(entry, data, replace(self.manifest, files=files))

    def record(self, facts: Mapping[str, object]) -> None:
        """Add to the facts of the manifest, which are values of JSON.

        Raises:
            SetError: they cannot be written.
        """
        with self.locked():
            manifest = replace(self.manifest, facts={**self.manifest.facts, **facts})
            write_manifest(self.path, manifest)
            self.manifest = manifest

    def verify(self) -> list[str]:
        """Return a line for every file that is missing, not as listed, or not listed.

        While somebody writes, files that are not listed are theirs and no problem.
        """
        with quiet(self.path) as is_quiet:
            try:
                manifest = read_manifest(self.path)
            except SetError as error:
                return [str(error)]
            files = manifest.all_files
            found = (self._problem(entry) for entry in files.values())
            problems = [problem for problem in found if problem is not None]
            return problems + (strays(self.path, files) if is_quiet else [])

    def _publish_graph(self, graph: GraphEntry, data: bytes) -> None:
        with self.locked():
            if self.has(graph.name, graph.key):
                return
            graphs = {**self.manifest.graphs, graph.name: graph}
            self._put(graph.file, data, replace(self.manifest, graphs=graphs))
            remove_leftovers(self.path, self.manifest.all_files)

    def _put(self, entry: FileEntry, data: bytes, manifest: Manifest) -> None:
        """Write a file, then the manifest that lists it.

        All is staged before anything appears: renaming needs no space on the disk.
        """
        path = self.path / entry.path
        steps = [_Step(path, data, "file", None), _step_to(self.path, manifest, "manifest")]
        if self.manifest.all_files.get(entry.path) not in (None, entry):
            steps.insert(0, _step_to(self.path, self.manifest.without(entry.path), "unlisting"))
        with writing(path), ExitStack() as cleanup:
            if not path.parent.is_dir():
                path.parent.mkdir()
                sync_folder(self.path)
            staged = []
            for step in steps:
                staged.append(stage(step.path, step.data, step.kind))
                cleanup.callback(staged[-1].unlink, missing_ok=True)
            for step, file in zip(steps, staged, strict=True):
                appear(file, step.path, step.kind)
                self.manifest = step.manifest or self.manifest

    def _checked(self, entry: FileEntry) -> bytes:
        try:
            data = (self.path / entry.path).read_bytes()
        except FileNotFoundError:
            raise DamagedFile(f"{self.path}: {entry.path} is missing") from None
        except OSError as error:
            raise SetError(f"{self.path}: {entry.path} cannot be read: {error.strerror}") from error
        difference = entry.difference(data)
        if difference is not None:
            raise DamagedFile(f"{self.path}: {difference}")
        return data

    def _problem(self, entry: FileEntry) -> str | None:
        try:
            self._checked(entry)
        except SetError as error:
            return str(error)
        return None


@dataclass(frozen=True, slots=True)
class _Step:
    """One file that appears, and the manifest that the set has from then on, if it is that."""

    path: Path
    data: bytes
    kind: str
    manifest: Manifest | None


def _step_to(folder: Path, manifest: Manifest, kind: str) -> _Step:
    return _Step(folder / MANIFEST, manifest.to_bytes(), kind, manifest)
