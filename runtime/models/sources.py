"""What a ``model:`` value stands for: a folder, a GGUF file, a fetched name, a hub id, a mapping.

Strings are tried in this order: an existing folder, an existing ``.gguf`` file, the name of a
known model, a hub id. Anything else is an error that lists what was tried.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from .architecture import Architecture
from .byte_tokenizer import byte_tokenizer
from .checkpoint import open_checkpoint, read_json
from .config_fields import ConfigFields
from .converted import convert_gguf
from .fetch import KNOWN_MODELS, fetched_path
from .hub import MODEL_PATTERNS, TOKENIZER_PATTERNS, hub_folder, is_hub_id
from .inline import read_inline
from .random_weights import RandomTensors
from .tokenizer import Tokenizer
from .tokenizer_files import load_tokenizer


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model ready to be built.

    ``tensors`` maps Hugging Face names to CPU tensors, read or made when asked for; treat them as
    read-only. ``tokenizer`` is None where the model has none: prompts are token ids then.
    ``eos_token_ids`` is the union of what config.json, generation_config.json and the tokenizer
    name.
    """

    architecture: Architecture
    tensors: Mapping[str, Tensor]
    tokenizer: Tokenizer | None
    eos_token_ids: tuple[int, ...]


def open_model(
    model: str | Path | Mapping[str, object],
    *,
    tokenizer: str | Path | None = None,
    cache: Path | None = None,
    progress: Callable[[str], None] = lambda message: None,
) -> LoadedModel:
    """Open what a ``model:`` value names; ``tokenizer`` replaces the model's own.

    A mapping is an architecture with seeded random weights (``seed:``) and a byte tokenizer if
    the vocabulary holds one. ``cache`` defaults to ``user_cache()``; ``progress`` takes one line
    per long stage.

    Raises:
        ModelError: one line that names the model and what would fit.
    """
    if isinstance(model, Mapping):
        return _open_inline(model, tokenizer)
    path = resolve_model(str(model), cache=cache)
    with _readable("model", str(model)):
        if path.is_dir():
            return _open_folder(path, tokenizer)
        converted = convert_gguf(path, cache=cache, progress=progress)
        if tokenizer is None and converted.tokenizer_problem is not None:
            raise ModelError(f"{path}: {converted.tokenizer_problem}")
        return _open_folder(converted.folder, tokenizer)


def resolve_model(name: str, *, cache: Path | None = None) -> Path:
    """Return the folder or GGUF file that ``name`` stands for, downloading a hub id.

    Raises:
        ModelError: nothing fits; the text lists what was tried.
    """
    path = _expanded("model", name)
    with _readable("model", name):
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
            return hub_folder(name, patterns=(*MODEL_PATTERNS, *TOKENIZER_PATTERNS))
        except ModelError as error:
            raise ModelError(f"model {name!r} is no folder or file here; {error}") from None
    raise ModelError(_not_found(name))


@contextmanager
def _readable(setting: str, name: str) -> Iterator[None]:
    """Turn what the file system says of a path that the user wrote into a ModelError."""
    try:
        yield
    except OSError as error:
        where = f" ({error.filename})" if error.filename not in (None, name) else ""
        raise ModelError(f"{setting} {name!r}: {error.strerror or error}{where}") from None


def _expanded(setting: str, name: str) -> Path:
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


def _open_inline(mapping: Mapping[str, object], tokenizer: str | Path | None) -> LoadedModel:
    architecture, seed = read_inline(mapping, "model")
    own = open_tokenizer(tokenizer) if tokenizer is not None else byte_tokenizer(architecture)
    eos = _union(architecture, None, own)
    return LoadedModel(architecture, RandomTensors(architecture, seed), own, eos)


def _open_folder(folder: Path, tokenizer: str | Path | None) -> LoadedModel:
    checkpoint = open_checkpoint(folder)
    own = load_tokenizer(folder) if tokenizer is None else open_tokenizer(tokenizer)
    eos = _union(checkpoint.architecture, folder / "generation_config.json", own)
    return LoadedModel(checkpoint.architecture, checkpoint.tensors, own, eos)


def open_tokenizer(name: str | Path) -> Tokenizer:
    """Load the tokenizer that a ``tokenizer:`` value names: a folder or a hub id.

    Raises:
        ModelError: one line that names it.
    """
    folder = _expanded("tokenizer", str(name))
    with _readable("tokenizer", str(name)):
        if not folder.is_dir():
            if not is_hub_id(str(name)) or folder.exists():
                raise ModelError(f"tokenizer {str(name)!r} is no folder and no hub id")
            folder = hub_folder(str(name), patterns=TOKENIZER_PATTERNS)
        found = load_tokenizer(folder)
    if found is None:
        raise ModelError(f"tokenizer {str(name)!r} has no tokenizer.json")
    return found


def _union(
    architecture: Architecture, generation_config: Path | None, tokenizer: Tokenizer | None
) -> tuple[int, ...]:
    """Join the end tokens of all places that may name them."""
    ids = list(architecture.eos_token_ids)
    if generation_config is not None and generation_config.is_file():
        fields = ConfigFields(read_json(generation_config), str(generation_config))
        ids += fields.token_ids("eos_token_id", architecture.vocab_size)
    if tokenizer is not None and tokenizer.eos_token_id is not None:
        ids.append(tokenizer.eos_token_id)
    return tuple(dict.fromkeys(ids))
