"""The compiled sets that this user keeps, one folder per key, and which of them are of no use."""

from __future__ import annotations

import os
import re
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from ..backends import load_kernels
from ..errors import NoriaError, SetError
from ..models.user_cache import user_cache
from ..value_text import value_text
from .folder import SetFolder
from .identity import code_key
from .locking import write_lock
from .manifest import MANIFEST, Manifest
from .staging import writing

SETS = "sets"
SHORT = 12
"""Digits of a key that tell sets apart for people."""
DAY_S = 86400.0
REMOVED = ".removed-"
_KEY = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A set of the local cache.

    Attributes:
        path: its folder, whose name is the digest of the set's key.
        manifest: what is in it; None if that cannot be read.
        problem: why it cannot be read, or a damaged file; None if it is whole.
        age_s: seconds since its manifest, or a damaged set's folder, has changed.
        num_bytes: of all its files.
    """

    path: Path
    manifest: Manifest | None
    problem: str | None
    age_s: float
    num_bytes: int

    @property
    def key(self) -> str:
        """The digest of its key."""
        return self.path.name

    @property
    def model(self) -> str:
        """What its configuration names as the model."""
        try:
            settings = yaml.safe_load(SetFolder.open(self.path).read_file("config.yaml"))
        except SetError:
            return "-"
        return settings["model"] if isinstance(settings["model"], str) else "inline model"


def sets_folder() -> Path | None:
    """Return where the sets of this user are, which may not be there; None: they keep none.

    ``$NORIA_SETS`` names it. Where that is unset, it is in the user's cache; where it is empty, or
    the user has no home, there are no local sets.
    """
    named = os.environ.get("NORIA_SETS")
    try:
        if named is None:
            return user_cache() / SETS
        return Path(named).expanduser() if named else None
    except RuntimeError:  # what pathlib raises without a home
        return None


def cached_sets(root: Path) -> list[CachedSet]:
    """Return the sets under ``root``, the last changed one first, with every file checked.

    Folders that are not named by a key are somebody else's, whatever is in them.

    Raises:
        SetError: ``root`` cannot be read.
    """
    return sorted(map(_look, _set_paths(root)), key=lambda one: (one.age_s, one.key))


def find_set(root: Path, key: str) -> CachedSet:
    """Return the one set whose key begins with ``key``.

    Raises:
        SetError: there is none, or more than one, or ``root`` cannot be read.
    """
    keys = sorted(path.name for path in _set_paths(root))
    found = [one for one in keys if key and one.startswith(key)]
    if len(found) == 1:
        return _look(root / found[0])
    if found:
        listed = ", ".join(one[:SHORT] for one in found)
        raise SetError(f"{value_text(key)} begins the keys of {len(found)} sets: {listed}")
    raise SetError(f"{root} has no set whose key begins with {value_text(key)}")


def useless(one: CachedSet, *, max_age_days: float | None) -> str | None:
    """Say why a set is of no use here, if it is.

    It is if it is damaged, if this version, torch or machine makes other graphs, or if nothing
    of it has changed for ``max_age_days``. One of a newer format is another version's.
    """
    if one.problem is not None:
        return None if one.manifest is None and "newer" in one.problem else "damaged"
    assert one.manifest is not None
    if _is_outdated(one.manifest):
        return "made by another version of the code, of torch or on another machine"
    if max_age_days is not None and one.age_s > max_age_days * DAY_S:
        return f"unchanged for {one.age_s / DAY_S:.0f} days"
    return None


def remove_set(path: Path) -> None:
    """Remove a set when nobody writes it; it vanishes at once, then its files go.

    One that somebody else has removed meanwhile is gone, too.

    Raises:
        SetError: it cannot be removed.
    """
    aside = path.with_name(f"{REMOVED}{path.name}")
    try:
        with writing(path), write_lock(path):
            shutil.rmtree(aside, ignore_errors=True)
            path.rename(aside)
    except SetError:
        if os.path.lexists(path):
            raise
    shutil.rmtree(aside, ignore_errors=True)


def remove_leftovers_of(root: Path) -> None:
    """Remove what removals that were killed have left."""
    for path in _named(root, REMOVED):
        shutil.rmtree(path, ignore_errors=True)


def _set_paths(root: Path) -> list[Path]:
    return _named(root, "")


def _named(root: Path, start: str) -> list[Path]:
    """Return the folders in ``root`` whose names are ``start`` and a key."""
    try:
        found = [path for path in root.iterdir() if path.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise SetError(f"{root} cannot be read: {error.strerror}") from error
    return [
        path
        for path in found
        if path.name.startswith(start) and _KEY.fullmatch(path.name.removeprefix(start))
    ]


def _num_bytes(path: Path) -> int:
    """Return the size of all files; those that vanish meanwhile count nothing."""
    size = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(folder, name)).st_size
    return size


def _age_s(path: Path) -> float:
    for marker in (path / MANIFEST, path):
        with suppress(OSError):
            return max(0.0, time.time() - marker.stat().st_mtime)
    return 0.0


def _look(path: Path) -> CachedSet:
    size, age = _num_bytes(path), _age_s(path)
    try:
        folder = SetFolder.open(path)
    except SetError as error:
        return CachedSet(path, None, str(error), age, size)
    problems = folder.verify()
    return CachedSet(path, folder.manifest, problems[0] if problems else None, age, size)


def _is_outdated(manifest: Manifest) -> bool:
    backend, target = manifest.key.get("backend"), manifest.key.get("target")
    try:
        kernels = load_kernels(str(backend), None if target is None else str(target))
    except NoriaError:
        return False  # what cannot run now, for a package that is missing, may run later
    here = code_key(kernels)
    return any(manifest.key.get(field) != value for field, value in here.items())
