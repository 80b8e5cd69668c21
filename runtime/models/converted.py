"""GGUF files as checkpoint folders, converted once and kept in the user's cache.

``converted/<sha256 of the file>-v1`` holds config.json, model.safetensors (fp32), the tokenizer
files where its kind is supported, and converted.json, which tells whether the folder is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ..errors import ModelError
from .user_cache import locked, staged_folder, user_cache

FORMAT_VERSION = 1
RECORD_FILE = "converted.json"


@dataclass(frozen=True, slots=True)
class ConvertedModel:
    """A checkpoint folder; ``tokenizer_problem`` tells why it has no tokenizer, else None."""

    folder: Path
    tokenizer_problem: str | None


def convert_gguf(
    path: Path,
    *,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> ConvertedModel:
    """Return the checkpoint folder of a GGUF file, converting it when the cache has none.

    ``cache`` defaults to ``user_cache()``. A folder that lost a part is converted again.
    ``progress`` takes one line before a conversion, which takes seconds per 100 MB.

    Raises:
        ModelError: the file is damaged or holds something that is not supported, or the cache
            cannot be written.
    """
    root = (cache or user_cache()) / "converted"
    try:
        target = root / f"{_remembered_sha256(path, root / 'hashes')}-v{FORMAT_VERSION}"
        return _read_record(target) or _convert(path, target, progress)
    except OSError as error:
        raise ModelError(
            f"{path}: cannot be converted into {root}: {error} (XDG_CACHE_HOME chooses another "
            "place)"
        ) from None


def _convert(path: Path, target: Path, progress: Callable[[str], None]) -> ConvertedModel:
    """Convert unless another process did so while this one waited for the lock."""
    # Imported here: reading GGUF costs a tenth of a second that later starts need not pay.
    from .gguf_conversion import write_checkpoint

    with locked(target):
        found = _read_record(target)
        if found is not None:
            return found
        progress(f"{path.name}: converting once into {target}")
        with staged_folder(target) as folder:
            problem = write_checkpoint(path, folder)
            record = {"files": _file_sizes(folder), "tokenizer_problem": problem}
            (folder / RECORD_FILE).write_text(json.dumps(record, indent=1))
        return ConvertedModel(target, problem)


def file_sha256(path: Path) -> str:
    """Return the sha256 of a file's content, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remembered_sha256(path: Path, folder: Path) -> str:
    """Hash a file once per (absolute path, size, modification time)."""
    status = path.stat()
    identity = {
        "path": str(path.resolve()),
        "num_bytes": status.st_size,
        "modified_ns": status.st_mtime_ns,
    }
    note = folder / f"{hashlib.sha256(os.fsencode(path.resolve())).hexdigest()}.json"
    known = _load_json(note)
    if known is not None and {**known, "sha256": None} == {**identity, "sha256": None}:
        return str(known["sha256"])
    digest = file_sha256(path)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as scratch:
        json.dump({**identity, "sha256": digest}, scratch)
    Path(scratch.name).replace(note)
    return digest


def _load_json(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _read_record(folder: Path) -> ConvertedModel | None:
    """Return the converted model if every file is there with the recorded size."""
    record = _load_json(folder / RECORD_FILE)
    files = record.get("files") if record else None
    if not record or not isinstance(files, dict) or files != _file_sizes(folder):
        return None
    problem = record.get("tokenizer_problem")
    return ConvertedModel(folder, problem if isinstance(problem, str) else None)


def _file_sizes(folder: Path) -> dict[str, int]:
    files = [path for path in sorted(folder.iterdir()) if path.name != RECORD_FILE]
    return {path.name: path.stat().st_size for path in files}
