"""The manifest of a compiled set: what is in the set, as JSON that carries its own hash.

Every format begins with its number and ends with the sha256 of all that is before, so that a
damaged manifest of any format is known from a newer one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal, TypeVar

from ..errors import DamagedFile, ForeignFile, SetError
from ..value_text import value_text

FORMAT = 1
MANIFEST = "manifest.json"
GRAPHS = "graphs"
ERRORS = "errors"
MAX_PATH = 100
"""Of the path of a file within a set: what the header of a tar member holds."""

_HEAD = b'{\n "format": '
_TAIL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n\}\n')
_TAIL_BYTES = len(',\n "sha256": ""\n}\n') + 64
_T = TypeVar("_T")
_PART = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file of a set.

    Attributes:
        path: within the folder of the set, with ``/``; see ``check_path``.
        size: bytes.
        sha256: of its bytes, as lowercase hexadecimal digits.
    """

    path: str
    size: int
    sha256: str

    @classmethod
    def of(cls, path: str, data: bytes) -> FileEntry:
        """Return the entry of a file that holds ``data``."""
        return cls(check_path(path), len(data), hashlib.sha256(data).hexdigest())

    def difference(self, data: bytes) -> str | None:
        """Say in what ``data`` is not what this entry lists, if in anything."""
        if len(data) != self.size:
            return f"{self.path} has {len(data)} bytes, not {self.size}"
        found = hashlib.sha256(data).hexdigest()
        if found != self.sha256:
            return f"{self.path} has the sha256 {found[:12]}..., not {self.sha256[:12]}..."
        return None


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """A graph of a set.

    Attributes:
        name: what its file is called.
        status: ``failed`` if it could not be compiled.
        key: what tells it from other graphs of the set; values of JSON.
        file: the graph, or of a failed one the text of the error.
        seconds: what compiling it took.
        peak_bytes: most memory that compiling it took; 0 if it was not measured.
        error: first line of the error of a failed one.
    """

    name: str
    status: Literal["done", "failed"]
    key: Mapping[str, object]
    file: FileEntry
    seconds: float
    peak_bytes: int
    error: str | None = None

    def __post_init__(self) -> None:
        """Hold the key as JSON gives it back."""
        object.__setattr__(self, "key", _plain(self.key))


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is in a compiled set.

    Attributes:
        key: what all its graphs have in common; values of JSON.
        num_blocks: of each KV group; empty if the set is for any number.
        graphs: by their names.
        files: all others but the manifest, by their paths.
        facts: what is known about the set besides; values of JSON.
        format: version of the manifest and of the folder.
    """

    key: Mapping[str, object]
    num_blocks: tuple[int, ...]
    graphs: Mapping[str, GraphEntry] = field(default_factory=dict)
    files: Mapping[str, FileEntry] = field(default_factory=dict)
    facts: Mapping[str, object] = field(default_factory=dict)
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Hold key and facts as JSON gives them back."""
        object.__setattr__(self, "key", _plain(self.key))
        object.__setattr__(self, "facts", _plain(self.facts))

    @property
    def all_files(self) -> dict[str, FileEntry]:
        """Every file of the set but the manifest, by path, in the order of the paths."""
        entries = [*self.files.values(), *(graph.file for graph in self.graphs.values())]
        return {entry.path: entry for entry in sorted(entries, key=lambda entry: entry.path)}

    def without(self, path: str) -> Manifest:
        """Return the manifest less what has this file."""
        graphs = {name: graph for name, graph in self.graphs.items() if graph.file.path != path}
        files = {name: entry for name, entry in self.files.items() if name != path}
        return replace(self, graphs=graphs, files=files)

    def to_bytes(self) -> bytes:
        """Return the manifest as a file holds it; equal manifests give equal bytes."""
        lines = (
            f'{{\n "format": {self.format}',
            f' "num_blocks": {_json(self.num_blocks)}',
            f' "key": {_json(self.key)}',
            f' "files": {_json_lines({p: asdict(e) for p, e in self.files.items()})}',
            f' "graphs": {_json_lines({n: asdict(g) for n, g in self.graphs.items()})}',
            f' "facts": {_json(self.facts)}',
        )
        body = ",\n".join(lines).encode("ascii")
        return body + b',\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Return the manifest that ``to_bytes`` wrote.

        Raises:
            DamagedFile: a byte of it is missing or not what was written.
            ForeignFile: it is no manifest of a compiled set.
            SetError: it is of a newer format.
        """
        _check_hash(data)
        try:
            value = _mapping(json.loads(data))
            version = _typed(value["format"], int)
            if version > FORMAT:
                raise SetError(
                    f"{MANIFEST} is of format {version}, and this version of Noria reads formats "
                    f"up to {FORMAT}"
                )
            manifest = _read_manifest(value)
            if manifest.to_bytes() == data:
                return manifest
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, SetError):
                raise
        raise ForeignFile(f"{MANIFEST} is not as format {FORMAT} has it")


def check_path(path: str) -> str:
    """Return the path of a file within a set, if it is one.

    It has one or two parts of ASCII letters, digits, ``_``, ``.`` and ``-`` that begin with a
    letter or digit, at most ``MAX_PATH`` characters in all, and is not the manifest's.

    Raises:
        SetError: it is none.
    """
    parts = path.split("/")
    fits = len(parts) <= 2 and len(path) <= MAX_PATH and path != MANIFEST
    if not fits or not all(_PART.fullmatch(part) for part in parts):
        raise SetError(f"{value_text(path)} is no path of a file in a compiled set")
    return path


def _check_hash(data: bytes) -> None:
    """Raise unless the end of the manifest is the hash of what is before."""
    tail = _TAIL.fullmatch(data[-_TAIL_BYTES:])
    begins = data.startswith(_HEAD) or _HEAD.startswith(data)
    if tail is None and not begins:
        raise ForeignFile(f"{MANIFEST} is not the manifest of a compiled set")
    if tail is None:
        raise DamagedFile(f"{MANIFEST} is damaged: it does not end with its own sha256")
    if not data.startswith(_HEAD) or _sha256(data[:-_TAIL_BYTES]) != tail[1]:
        raise DamagedFile(f"{MANIFEST} is damaged: its sha256 is not the one that it ends with")


def _sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).hexdigest().encode()


def _plain(value: object) -> object:
    """Return the value as JSON gives it back, with the keys of mappings in order."""
    if isinstance(value, Mapping):
        assert all(isinstance(key, str) for key in value), value
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    assert value is None or isinstance(value, bool | int | float | str), value
    return value


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False)


def _json_lines(entries: Mapping[str, object]) -> str:
    """Write a mapping with one line for each of its entries."""
    lines = ",\n".join(f"  {_json(key)}: {_json(entries[key])}" for key in sorted(entries))
    return f"{{\n{lines}\n }}" if lines else "{}"


def _read_manifest(value: Mapping[str, Any]) -> Manifest:
    manifest = Manifest(
        key=_mapping(value["key"]),
        num_blocks=tuple(_typed(size, int) for size in _typed(value["num_blocks"], list)),
        graphs={name: _read_graph(_mapping(one)) for name, one in value["graphs"].items()},
        files={path: _read_file(_mapping(one)) for path, one in value["files"].items()},
        facts=_mapping(value["facts"]),
        format=FORMAT,
    )
    listed = [*manifest.files.values(), *(graph.file for graph in manifest.graphs.values())]
    names = [*(file.path for file in manifest.files.values())]
    names += [graph.name for graph in manifest.graphs.values()]
    if names != [*manifest.files, *manifest.graphs] or len(manifest.all_files) < len(listed):
        raise ValueError("a file is listed twice, or under another name")
    return manifest


def _read_graph(value: Mapping[str, Any]) -> GraphEntry:
    status = value["status"]
    if status not in ("done", "failed"):
        raise ValueError(f"the status {value_text(status)}")
    return GraphEntry(
        name=_typed(value["name"], str),
        status=status,
        key=_mapping(value["key"]),
        file=_read_file(_mapping(value["file"])),
        seconds=_typed(value["seconds"], float),
        peak_bytes=_typed(value["peak_bytes"], int),
        error=None if value["error"] is None else _typed(value["error"], str),
    )


def _read_file(value: Mapping[str, Any]) -> FileEntry:
    entry = FileEntry(
        path=check_path(_typed(value["path"], str)),
        size=_typed(value["size"], int),
        sha256=_typed(value["sha256"], str),
    )
    if entry.size < 0 or not re.fullmatch("[0-9a-f]{64}", entry.sha256):
        raise ValueError(f"the size {entry.size} or the sha256 {value_text(entry.sha256)}")
    return entry


def _mapping(value: object) -> dict[str, Any]:
    return _typed(value, dict)


def _typed(value: object, kind: type[_T]) -> _T:
    if type(value) is not kind:
        raise TypeError(f"{value_text(value)} is no {kind.__name__}")
    return value
