"""The architecture of a model from its configuration alone: no weights, no tokenizer, no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..errors import ModelError
from .architecture import Architecture
from .families import read_architecture
from .inline import read_inline
from .json_files import read_json
from .locations import readable, resolve_model

CONFIG_FILE = "config.json"


def read_sizes_of(
    model: str | Path | Mapping[str, object], *, cache: Path | None = None
) -> Architecture:
    """Return the architecture that a ``model:`` value names; of a hub id, one file is downloaded.

    Raises:
        ModelError: one line that names the model and what would fit.
    """
    if isinstance(model, Mapping):
        return read_inline(model, "model")[0]
    path = resolve_model(str(model), cache=cache, patterns=(CONFIG_FILE,))
    with readable("model", str(model)):
        if path.is_dir():
            config = path / CONFIG_FILE
            return read_architecture(read_json(config), source=str(config))
        return _read_gguf(path)


def _read_gguf(path: Path) -> Architecture:
    try:
        from .gguf_file import GgufFile
    except ImportError as error:
        raise ModelError(f"{path}: reading GGUF files needs {error.name}") from None
    return read_architecture(GgufFile(path).config(), source=str(path))
