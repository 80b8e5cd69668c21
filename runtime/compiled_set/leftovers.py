"""What is in the folder of a set and not listed: left by writers that died, or put there."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from .claims import CLAIM, remove_free_claims
from .locking import LOCK
from .manifest import ERRORS, GRAPHS, MANIFEST
from .staging import STAGED, fault_point, writing


def remove_leftovers(folder: Path, listed: Collection[str]) -> None:
    """Remove what was staged, graphs and errors that are not ``listed``, and claims of the dead.

    The caller holds the lock, so nobody is writing them; claims that somebody has stay.

    Raises:
        SetError: the folder cannot be written.
    """
    ours = [*folder.glob(f"{GRAPHS}/*.graph"), *folder.glob(f"{ERRORS}/*.txt")]
    unlisted = [path for path in ours if _name(folder, path) not in listed]
    staged = [*folder.glob(f"{STAGED}*"), *folder.glob(f"*/{STAGED}*")]
    with writing(folder):
        for path in sorted({*staged, *unlisted}):
            path.unlink()
            fault_point("leftover.removed")
    remove_free_claims(folder)


def strays(folder: Path, listed: Collection[str]) -> list[str]:
    """Return a line for every file that is not ``listed``; a claim is part of no set."""
    names = [name for name in _unlisted(folder, listed) if not name.startswith(CLAIM)]
    return [f"{folder}: {name} {_reason(name)}" for name in names]


def has_leftovers(folder: Path, listed: Collection[str]) -> bool:
    """Tell whether there is a file that is not ``listed``, claims included."""
    return bool(_unlisted(folder, listed))


def _unlisted(folder: Path, listed: Collection[str]) -> list[str]:
    names = [_name(folder, path) for path in folder.rglob("*") if not path.is_dir()]
    return sorted({*names} - {*listed, MANIFEST, LOCK})


def _name(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def _reason(name: str) -> str:
    if name.rpartition("/")[2].startswith(STAGED):
        return "is left over from a write that did not end"
    return "is not listed"
