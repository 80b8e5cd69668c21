"""Copies of the package and of what it has built, for processes that run from another place."""

from __future__ import annotations

import shutil
from pathlib import Path

from noria.kernels.cpu.build import build, detect_instruction_set, find_compiler
from noria.runtime.compiled_set.identity import RUNTIME

ROOT = RUNTIME.resolve().parent
FOLDERS = ("bucketing", "configs", "kernels", "runtime")


def copy_package(folder: Path) -> Path:
    """Copy the package into ``folder``, which is then for PYTHONPATH."""
    for name in FOLDERS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / name, folder / "noria" / name, ignore=ignored)
    return folder


def copy_built_kernels(cache: Path) -> Path:
    """Copy the native library into ``cache``, which is then for XDG_CACHE_HOME."""
    compiler = find_compiler()
    assert compiler is not None
    library = build(compiler, detect_instruction_set())
    shutil.copytree(library.parent, cache / "noria" / "kernels" / library.parent.name)
    return cache
