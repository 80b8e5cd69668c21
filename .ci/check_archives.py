"""Check that a wheel and an sdist hold the package's files: every one, and nothing else of it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

PACKAGE_FOLDERS = ("bucketing", "configs", "kernels", "runtime")
ALSO_IN_SDIST = ("docs", "tests", "examples", "constraints.txt", "Makefile", "LICENSE", "README.md")


def main(folder: Path) -> None:
    """Compare the archives in ``folder`` with the tracked files."""
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        in_wheel = {name for name in archive.namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    require_equal("wheel", in_wheel, {f"noria/{name}" for name in tracked(*PACKAGE_FOLDERS)})
    missing = tracked(*PACKAGE_FOLDERS, *ALSO_IN_SDIST) - in_sdist
    require_equal("sdist", in_sdist, in_sdist | missing)
    print(f"wheel: {len(in_wheel)} files, sdist: {len(in_sdist)} files, as tracked")


def tracked(*paths: str) -> set[str]:
    """Return the files that git tracks below ``paths``."""
    done = subprocess.run(["git", "ls-files", *paths], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def require_equal(name: str, found: set[str], expected: set[str]) -> None:
    """Stop with the differences, if there are any."""
    missing, surplus = sorted(expected - found), sorted(found - expected)
    if missing or surplus:
        sys.exit(f"{name}: missing {missing}, not tracked {surplus}")


main(Path(sys.argv[1]))
