"""A compiled set as one file for shipping: a tar whose every byte follows from the set.

The manifest comes first, then the other files in the order of their paths, none of them with a
time, an owner or rights of its own. What is read must be exactly that, header by header, so a
bundle can name no place outside its folder, hold no link and nothing that the manifest does not
list.
"""

from __future__ import annotations

import gzip
import shutil
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from ..errors import DamagedFile, SetError
from ..value_text import value_text
from .folder import SetFolder
from .locking import LOCK
from .manifest import MANIFEST, Manifest
from .staging import appear, stage, sync_folder, writing

MAX_MEMBER_BYTES = 2**30
"""Of one file; far more than any graph has, and no more than a reader can hold."""

_BLOCK = tarfile.BLOCKSIZE
_END = bytes(2 * _BLOCK)
_GZIP = b"\x1f\x8b"
_GZIP_NAMES = (".gz", ".tgz")
_LEVEL = 6
_PIECE = 2**20


class _Stream(Protocol):
    """What a bundle is read from."""

    def read(self, size: int, /) -> bytes:
        """Return up to ``size`` bytes, none at the end."""
        ...


def write_bundle(folder: SetFolder, path: Path) -> None:
    """Write the set to ``path``; compressed by gzip if that ends with ``.gz`` or ``.tgz``.

    Raises:
        DamagedFile: a file of the set is missing or not as listed.
        SetError: the bundle cannot be written; what was at ``path`` stays.
    """
    members = [(MANIFEST, folder.manifest.to_bytes())]
    members += [(name, folder.read_file(name)) for name in folder.manifest.all_files]
    data = b"".join(_member(name, content) for name, content in members) + _END
    if path.name.endswith(_GZIP_NAMES):
        data = gzip.compress(data, _LEVEL, mtime=0)
    with writing(path):
        appear(stage(path, data, "bundle"), path, "bundle")


def read_bundle(path: Path, target: Path) -> SetFolder:
    """Make the folder ``target`` of a bundle; it appears when all of it is there and checked.

    Raises:
        DamagedFile: the bundle is cut short, or a file is not as the manifest lists it.
        SetError: it is no bundle, ``target`` is there and not empty, or cannot be written.
    """
    if target.exists() and not (target.is_dir() and not any(target.iterdir())):
        raise SetError(f"{target} is there already; name a new or an empty folder")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        made = tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        staged = Path(made) / "set"
        _extract(path, staged)
        problems = SetFolder.open(staged).verify()
        if problems:
            raise DamagedFile(problems[0])
        with writing(target):
            staged.rename(target)
            sync_folder(target.parent)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return SetFolder.open(target)


def _extract(path: Path, folder: Path) -> None:
    with writing(folder):
        folder.mkdir()
        (folder / LOCK).touch()
    for name, data in _members(path):
        with writing(folder / name):
            (folder / name).parent.mkdir(exist_ok=True)
            appear(stage(folder / name, data, "member"), folder / name, "member")


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of every member, each checked to be what must come next."""
    with _opened(path) as stream:
        data = _read_manifest(stream)
        manifest = Manifest.from_bytes(data)
        yield MANIFEST, data
        for name, entry in manifest.all_files.items():
            _check_header(stream.read(_BLOCK), name, entry.size)
            data = _read_content(stream, name, entry.size)
            difference = entry.difference(data)
            if difference is not None:
                raise DamagedFile(difference)
            yield name, data
        if stream.read(len(_END)) != _END or stream.read(1):
            raise SetError("its end is missing, or there is more after it")


@contextmanager
def _opened(path: Path) -> Iterator[_Stream]:
    """Open a bundle and name it in what goes wrong with its content."""
    try:
        with path.open("rb") as file:
            is_gzip = file.read(len(_GZIP)) == _GZIP
        with gzip.open(path) if is_gzip else path.open("rb") as stream:
            yield stream
    except SetError as error:
        raise type(error)(f"{path}: {error}") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise SetError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_manifest(stream: _Stream) -> bytes:
    header = stream.read(_BLOCK)
    try:
        size = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape").size
    except tarfile.HeaderError:
        raise SetError("it is no bundle of a compiled set") from None
    _check_header(header, MANIFEST, size)
    return _read_content(stream, MANIFEST, size)


def _check_header(header: bytes, name: str, size: int) -> None:
    if header != _header(name, size):
        raise SetError(f"it holds {_member_text(header)} where {name} of {size} bytes should be")


def _member_text(header: bytes) -> str:
    """Say what a header stands for."""
    try:
        member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        return "no member"
    kind = "file" if member.isreg() else "member that is no file"
    return f"{value_text(member.name)}, a {kind} of {member.size} bytes,"


def _read_content(stream: _Stream, name: str, size: int) -> bytes:
    """Read the content of a member and the zeros that fill its last block."""
    num_missing = size + -size % _BLOCK
    pieces = []
    while piece := stream.read(min(num_missing, _PIECE)):
        pieces.append(piece)
        num_missing -= len(piece)
    data = b"".join(pieces)
    if num_missing or any(data[size:]):
        raise DamagedFile(f"{name} is not whole in it")
    return data[:size]


def _member(name: str, data: bytes) -> bytes:
    return _header(name, len(data)) + data + bytes(-len(data) % _BLOCK)


def _header(name: str, size: int) -> bytes:
    """Return the only header that a member of this name and size has."""
    if not 0 <= size <= MAX_MEMBER_BYTES:
        raise SetError(f"{name} of {size} bytes is more than the {MAX_MEMBER_BYTES} of a member")
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.USTAR_FORMAT)
