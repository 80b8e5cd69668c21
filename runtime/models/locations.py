"""Where the files of a model are that a ``model:`` value names; imports no torch.

Strings are tried in this order: an existing folder, an existing ``.gguf`` file, the name of a
known model, a hub id. Anything else is an error that lists what was tried.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..errors import ModelError
from .fetch import KNOWN_MODELS, fetched_path
from .hub import MODEL_PATTERNS, TOKENIZER_PATTERNS, hub_folder, is_hub_id


def resolve_model(
    name: str,
    *,
    cache: Path | None = None,
    patterns: Sequence[str] = (*MODEL_PATTERNS, *TOKENIZER_PATTERNS),
) -> Path:
    """Return the folder or GGUF file that ``name`` stands for, downloading a hub id.

    ``patterns`` name the files of a hub id that are needed.

    Raises:
        ModelError: nothing fits; the text lists what was tried.
    """
    path = expanded_path("model", name)
    with readable("model", name):
        if path.is_dir():
            return path
        if path.is_file():
            return _require_gguf(path)
    if name in KNOWN_MODELS:
        found = fetched_path(name, cache=cache)
        if found is None:
            raise ModelError(f"model {name!r} is not fetched yet; run: noria fetch {name}")
        return found
    if is_hub_id(name):
        try:
            return hub_folder(name, patterns=tuple(patterns))
        except ModelError as error:
            raise ModelError(f"model {name!r} is no folder or file here; {error}") from None
    raise ModelError(_not_found(name))


def model_name(model: str | Mapping[str, object]) -> str:
    """Return what reports call a model: no path, which would tell of the machine."""
    return Path(model).name if isinstance(model, str) else "inline model"


@contextmanager
def readable(setting: str, name: str) -> Iterator[None]:
    """Turn what the file system says of a path that the user wrote into a ModelError."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in (None, name) else ""
        raise ModelError(f"{setting} {name!r}: {error.strerror or error}{where}") from None


def expanded_path(setting: str, name: str) -> Path:
    """Return a path with the home folder that ``~`` stands for.

    Raises:
        ModelError: nobody knows that folder.
    """
    try:
        return Path(name).expanduser()
    except RuntimeError:
        problem = "no home folder is known for that user"
        raise ModelError(f"{setting} {name!r}: {problem}") from None


def _not_found(name: str) -> str:
    known = ", ".join(sorted(KNOWN_MODELS))
    near = difflib.get_close_matches(name.lower(), KNOWN_MODELS, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return (
        f"model {name!r} is no folder, no .gguf file, no known name ({known}) and no hub id "
        f"(organisation/name){hint}"
    )


def _require_gguf(path: Path) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(
            f"model {str(path)!r} is neither a .gguf file nor a folder with config.json"
        )
    return path
