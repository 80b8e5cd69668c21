"""Writing a GGUF file's content as a checkpoint folder."""

from __future__ import annotations

import json
from pathlib import Path

from ..errors import ModelError
from .checkpoint import SINGLE_FILE, open_checkpoint
from .gguf_file import GgufFile
from .gguf_tokenizer import build_tokenizer
from .safetensors_writer import write_float32


def write_checkpoint(path: Path, folder: Path) -> str | None:
    """Write a checkpoint folder and check it as any other; return why it has no tokenizer.

    Raises:
        ModelError: the file is damaged or holds something that is not supported.
    """
    source = GgufFile(path)
    (folder / "config.json").write_text(json.dumps(source.config(), indent=1))
    write_float32(folder / SINGLE_FILE, source.shapes(), source.tensors())
    try:
        open_checkpoint(folder)
    except ModelError as error:
        message = str(error).replace(f"{folder}/", "").removeprefix(f"{folder}: ")
        raise source.error(message) from None
    return _write_tokenizer(source, folder)


def _write_tokenizer(source: GgufFile, folder: Path) -> str | None:
    try:
        tokenizer = build_tokenizer(source.metadata)
    except ModelError as error:
        return str(error)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer.config, indent=1))
    return None
