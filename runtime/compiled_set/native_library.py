"""The native library in a compiled set, for machines without a compiler."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from ..errors import SetError
from .folder import SetFolder

LOG = logging.getLogger(__name__)
LIBRARY = "kernels/library.so"


def library_of(folder: SetFolder, instruction_set: str, *, may_build: bool) -> Path | None:
    """Return the library of a set, None where it has none for this instruction set.

    Args:
        folder: the set.
        instruction_set: of this machine.
        may_build: whether there is another way to have one: a damaged one is none then, with a
            warning that names it.

    Raises:
        SetError: the file is missing, not as listed or cannot be read; it is never loaded then.
    """
    kernels = folder.manifest.key.get("kernels")
    built_for = kernels.get("instruction_set") if isinstance(kernels, Mapping) else None
    if LIBRARY not in folder.manifest.files or built_for != instruction_set:
        return None
    try:
        folder.read_file(LIBRARY)
    except SetError as error:
        if not may_build:
            raise
        LOG.warning("%s; the kernels are built here", error)
        return None
    return folder.path / LIBRARY
