"""Where facts about a machine are read: its files, variables, packages and programs."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..process_limits import usable_cpus


def _is_root() -> bool:
    return hasattr(os, "geteuid") and os.geteuid() == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """A machine to look at: this one, unless fields name another.

    Attributes:
        root: where its ``dev``, ``etc``, ``proc`` and ``sys`` are.
        environ: its variables; ``PATH`` is where its programs are.
        package_folders: where its packages are installed; None: where Python imports from.
        python: the first two numbers of the version that runs.
        python_path: the file of that Python.
        system: the kernel's name.
        architecture: of its processor.
        num_cpus: that this process may use.
        is_root: whether the user may install programs.
    """

    root: Path = Path("/")
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    package_folders: Sequence[str] | None = None
    python: tuple[int, int] = sys.version_info[:2]
    python_path: str = sys.executable
    system: str = field(default_factory=platform.system)
    architecture: str = field(default_factory=platform.machine)
    num_cpus: int = field(default_factory=usable_cpus)
    is_root: bool = field(default_factory=_is_root)

    def text(self, path: str) -> str | None:
        """Return a file's text, stripped; None: it is not there or cannot be read."""
        try:
            return (self.root / path).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return None

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder, in order; none where it cannot be read."""
        try:
            return sorted(os.listdir(self.root / folder))
        except OSError:
            return []

    def which(self, program: str) -> str | None:
        """Return the path of a program on PATH."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    @property
    def python_command(self) -> str:
        """What starts this Python: ``python``, where that is the one, or its path."""
        found = self.which("python")
        is_same = found is not None and os.path.abspath(found) == os.path.abspath(self.python_path)
        return "python" if is_same else self.python_path

    @property
    def sudo(self) -> str:
        """What a line begins with that installs a program."""
        return "" if self.is_root else "sudo "
