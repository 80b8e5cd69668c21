"""The manifest of a set on the disk: read with one clear line for what is wrong, written whole."""

from __future__ import annotations

import logging
from pathlib import Path

from ..errors import DamagedFile, ForeignFile, SetError
from .locking import LOCK, Patience, write_lock
from .manifest import GRAPHS, MANIFEST, Manifest
from .staging import appear, fault_point, stage, sync_folder, writing

LOG = logging.getLogger(__name__)


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


def begin_manifest(folder: Path, manifest: Manifest, patience: Patience) -> Manifest:
    """Write the first manifest, unless somebody else does; return the one that is there then.

    Raises:
        SetError: it cannot be written, or the folder holds something else.
    """
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        names = {path.name for path in folder.iterdir()}
    if names and not names & {LOCK, MANIFEST}:
        raise SetError(f"{folder} holds other files and no compiled set; name an empty folder")
    fault_point("folder.made")
    with write_lock(folder, patience):
        try:
            return read_manifest(folder)
        except (DamagedFile, ForeignFile) as error:
            if names & {MANIFEST, GRAPHS}:
                LOG.warning("%s; all of it is compiled again", error)
        write_manifest(folder, manifest)
        return manifest
