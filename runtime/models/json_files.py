"""Reads the JSON files of a model's folder; imports no torch."""

from __future__ import annotations

from pathlib import Path

from ..errors import ModelError
from ..json_text import parse_json


def read_json(path: Path) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        ModelError: the file is missing, is not JSON or holds something else than an object.
    """
    text = read_text(path)
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ModelError(f"{path}: not readable as JSON: {error}") from None
    if not isinstance(value, dict):
        raise ModelError(f"{path}: must hold a JSON object, not {type(value).__name__}")
    return value


def read_text(path: Path) -> str:
    """Read UTF-8 text.

    Raises:
        ModelError: the file is missing, cannot be read or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ModelError(f"{path}: no such file") from None
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8; must be UTF-8 text"
        raise ModelError(f"{path}: {problem}") from None
