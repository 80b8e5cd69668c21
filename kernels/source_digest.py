"""The digest of a target's Python modules: a trace or a compiled set of other ones is stale."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def source_digest(*patterns: str, folder: Path = FOLDER) -> str:
    """Return the sha256 of the modules that match, and of their names within ``folder``.

    Read once per process: what it runs was loaded about then.

    Raises:
        FileNotFoundError: a pattern matches nothing.
    """
    found: dict[str, Path] = {}
    for pattern in patterns:
        matches = {path.relative_to(folder).as_posix(): path for path in folder.glob(pattern)}
        if not matches:
            raise FileNotFoundError(f"{folder} has no {pattern}: its sources cannot be compared")
        found |= matches
    digest = hashlib.sha256()
    for name in sorted(found):
        text = found[name].read_bytes()
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()
