"""Models of the Hugging Face hub, downloaded into its own cache by its own client."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import ModelError

MODEL_PATTERNS = (
    "config.json",
    "generation_config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
)
TOKENIZER_PATTERNS = (
    "tokenizer*",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
)


def is_hub_id(name: str) -> bool:
    """Tell whether ``name`` has the form ``organisation/name``."""
    return re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name) is not None


def hub_folder(hub_id: str, *, patterns: tuple[str, ...]) -> Path:
    """Return a local folder with the files of ``hub_id`` that match ``patterns``.

    Raises:
        ModelError: one line: huggingface_hub is not installed, there is no such repository, or
            the network is out and its cache has no copy.
    """
    try:
        import huggingface_hub
    except ImportError:
        raise ModelError(
            f"{hub_id}: downloading needs the package huggingface_hub (pip install huggingface_hub)"
        ) from None
    try:
        return Path(huggingface_hub.snapshot_download(hub_id, allow_patterns=list(patterns)))
    except Exception as error:  # its own, httpx's and the file system's all mean: no folder
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{hub_id}: cannot download from the Hugging Face hub: {reason}") from None
