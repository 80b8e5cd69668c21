"""The native library in a compiled set, for machines without a compiler."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from .folder import SetFolder

LIBRARY = "kernels/library.so"


def library_of(folder: SetFolder, instruction_set: str) -> Path | None:
    """Return the library of a set, None where it has none for this instruction set.

    Raises:
        DamagedFile: the file is missing or not as listed; it is never loaded then.
    """
    kernels = folder.manifest.key.get("kernels")
    built_for = kernels.get("instruction_set") if isinstance(kernels, Mapping) else None
    if LIBRARY not in folder.manifest.files or built_for != instruction_set:
        return None
    folder.read_file(LIBRARY)
    return folder.path / LIBRARY
