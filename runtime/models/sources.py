"""What a ``model:`` value stands for: an architecture, tensors and a tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from ..errors import ModelError
from .architecture import Architecture
from .byte_tokenizer import byte_tokenizer
from .checkpoint import open_checkpoint
from .config_fields import ConfigFields
from .converted import convert_gguf
from .hub import TOKENIZER_PATTERNS, hub_folder, is_hub_id
from .inline import read_inline
from .json_files import read_json
from .locations import expanded_path, readable, resolve_model
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
    with readable("model", str(model)):
        if path.is_dir():
            return _open_folder(path, tokenizer)
        converted = convert_gguf(path, cache=cache, progress=progress)
        if tokenizer is None and converted.tokenizer_problem is not None:
            raise ModelError(f"{path}: {converted.tokenizer_problem}")
        return _open_folder(converted.folder, tokenizer)


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
    folder = expanded_path("tokenizer", str(name))
    with readable("tokenizer", str(name)):
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
