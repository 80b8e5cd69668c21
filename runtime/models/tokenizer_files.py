"""Tokenizers from files: ``tokenizer.json`` and what stands beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tokenizers

from ..errors import ModelError
from .chat_template import ChatTemplate
from .json_files import read_json, read_text
from .tokenizer import Tokenizer

TOKENIZER_FILE = "tokenizer.json"
OLDER_FILES = ("tokenizer.model", "vocab.json")
SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token")


def load_tokenizer(folder: Path) -> Tokenizer | None:
    """Load the tokenizer of a model folder, None when it has no tokenizer file.

    Whether a bos is added is up to tokenizer.json alone, as in transformers 5: ``add_bos_token`` of
    tokenizer_config.json has no effect. The file counts in all else, too: for Llama 2, transformers
    5 has rules of its own, by which a space that begins a text is lost. Older files
    (``tokenizer.model``, ``vocab.json``) are converted by transformers.

    Raises:
        ModelError: a file is damaged, or transformers is needed and not installed.
    """
    backend = _load_backend(folder)
    if backend is None:
        return None
    path = folder / "tokenizer_config.json"
    config = read_json(path) if path.is_file() else {}
    special_tokens = _special_tokens(config)
    bos = _token_id(backend, special_tokens.get("bos_token"))
    return Tokenizer(
        backend,
        bos_token_id=_added_bos(backend) if bos is None else bos,
        eos_token_id=_token_id(backend, special_tokens.get("eos_token")),
        chat_template=_chat_template(folder, config, special_tokens),
    )


def _load_backend(folder: Path) -> tokenizers.Tokenizer | None:
    path = folder / TOKENIZER_FILE
    if path.is_file():
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise ModelError(f"{path}: not a readable tokenizer: {error}") from None
    older = [name for name in OLDER_FILES if (folder / name).is_file()]
    return _convert_older(folder, older[0]) if older else None


def _convert_older(folder: Path, name: str) -> tokenizers.Tokenizer:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise ModelError(
            f"{folder}: has {name} but no {TOKENIZER_FILE}; reading it needs the package "
            "transformers (pip install transformers)"
        ) from None
    try:
        converted: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        backend: tokenizers.Tokenizer = converted.backend_tokenizer
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ModelError(f"{folder}: transformers cannot read {name}: {reason}") from None
    return backend


def _special_tokens(config: Mapping[str, object]) -> dict[str, str]:
    """Read names of special tokens, which stand plain or as ``{"content": ...}``."""
    found: dict[str, str] = {}
    for name in SPECIAL_TOKENS:
        value = config.get(name)
        content = value.get("content") if isinstance(value, Mapping) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _token_id(backend: tokenizers.Tokenizer, token: str | None) -> int | None:
    return None if token is None else backend.token_to_id(token)


def _added_bos(backend: tokenizers.Tokenizer) -> int | None:
    """Return the one id that the tokenizer puts before any text."""
    backend.no_padding()
    ids = backend.encode("").ids
    return ids[0] if len(ids) == 1 else None


def _chat_template(
    folder: Path, config: Mapping[str, object], special_tokens: Mapping[str, str]
) -> ChatTemplate | None:
    """Find the template: its own file, else a string, else "default" of a named list.

    Where there is one named "tool_use", it is the template of requests with tools.
    """
    path = folder / "chat_template.jinja"
    if path.is_file():
        tool_path = folder / "additional_chat_templates" / "tool_use.jinja"
        tool_source = read_text(tool_path) if tool_path.is_file() else None
        return ChatTemplate(read_text(path), special_tokens, tool_source=tool_source)
    value = config.get("chat_template")
    if not isinstance(value, list):
        return ChatTemplate(value, special_tokens) if isinstance(value, str) else None
    source, tool_source = (_named_template(value, name) for name in ("default", "tool_use"))
    return ChatTemplate(source, special_tokens, tool_source=tool_source) if source else None


def _named_template(entries: Sequence[object], name: str) -> str | None:
    """Return the last template of that name, None where there is none."""
    named = [entry for entry in entries if isinstance(entry, Mapping)]
    found = [entry.get("template") for entry in named if entry.get("name") == name]
    return found[-1] if found and isinstance(found[-1], str) else None
