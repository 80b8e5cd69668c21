"""The files of compiled graphs (NEFF) that the vendor's compiler keeps, and archives of them.

A file's name is the vendor's key of a graph. Names are listed and copied, never understood: what a
set is for is said by Noria's own key.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from hashlib import sha256
from pathlib import Path, PurePosixPath

PATTERN = "*.neff"
_MAGIC = b"noria neff 1\n"


class NeffCache:
    """A folder in which torch-neuronx looks for compiled graphs, and to which it adds them."""

    def __init__(self, folder: Path) -> None:
        """Take a folder that is there."""
        self.folder = folder

    def names(self) -> frozenset[str]:
        """Return the files that are there now, by their paths in the folder."""
        found = (path for path in self.folder.rglob(PATTERN) if path.is_file())
        return frozenset(path.relative_to(self.folder).as_posix() for path in found)

    def archive(self, names: Collection[str]) -> bytes:
        """Return these files as one."""
        return pack({name: (self.folder / name).read_bytes() for name in names})

    def put(self, archived: bytes) -> None:
        """Add the files of an archive; those that are there already stay as they are.

        Raises:
            ValueError: it is no archive.
        """
        for name, data in unpack(archived).items():
            path = self.folder / name
            if path.exists():
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f".{path.name}.{os.getpid()}")
            part.write_bytes(data)
            part.replace(path)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return files as one; the same files give the same bytes."""
    names = sorted(files)
    listed = [[name, len(files[name]), sha256(files[name]).hexdigest()] for name in names]
    head = json.dumps(listed).encode()
    start = [_MAGIC, sha256(head).hexdigest().encode(), b"\n", head, b"\n"]
    return b"".join([*start, *(files[name] for name in names)])


def unpack(archived: bytes) -> Mapping[str, bytes]:
    """Return the files of an archive by name.

    Raises:
        ValueError: it is none, is damaged, or names a file outside of its folder.
    """
    if not archived.startswith(_MAGIC):
        raise ValueError("no archive of NEFF files")
    digest_of_head, _, rest = archived[len(_MAGIC) :].partition(b"\n")
    head, _, data = rest.partition(b"\n")
    if sha256(head).hexdigest().encode() != digest_of_head:
        raise ValueError("an archive of NEFF files with a damaged list")
    files, start = {}, 0
    for name, size, digest in _listed(head):
        part = data[start : start + size]
        start += size
        if sha256(part).hexdigest() != digest:
            raise ValueError(f"{name} in an archive of NEFF files is damaged")
        files[_checked(name)] = part
    if start != len(data):
        raise ValueError(f"{len(data) - start} bytes more than an archive of NEFF files lists")
    return files


def _listed(head: bytes) -> list[tuple[str, int, str]]:
    try:
        listed = json.loads(head)
        return [(str(name), int(size), str(digest)) for name, size, digest in listed]
    except (ValueError, TypeError) as error:
        raise ValueError(f"an archive of NEFF files with a strange list: {error}") from error


def _checked(name: str) -> str:
    path = PurePosixPath(name)
    is_inside = not path.is_absolute() and not {"..", "."} & set(name.split("/"))
    if not is_inside or path.as_posix() != name or not path.match(PATTERN) or "\\" in name:
        raise ValueError(f"{name!r} is no NEFF file inside a folder")
    return name
