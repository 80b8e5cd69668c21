"""The manifest of a set on the disk: read with one clear line for what is wrong, written whole."""

from __future__ import annotations

from pathlib import Path

from ..errors import DamagedFile, SetError
from .manifest import MANIFEST, Manifest
from .staging import appear, stage, writing


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of the set in ``folder``.

    Raises:
        DamagedFile: it is missing or damaged.
        SetError: it is of a newer format, none of a set, or cannot be read.
    """
    try:
        data = (folder / MANIFEST).read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise DamagedFile(f"{folder} is no compiled set: it has no {MANIFEST}") from None
    except OSError as error:
        raise SetError(f"{folder}: {MANIFEST} cannot be read: {error.strerror}") from error
    try:
        return Manifest.from_bytes(data)
    except SetError as error:
        raise type(error)(f"{folder}: {error}") from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Put a manifest in the place of the one that is there.

    Raises:
        SetError: it cannot be written.
    """
    path = folder / MANIFEST
    with writing(path):
        appear(stage(path, manifest.to_bytes(), "manifest"), path, "manifest")
