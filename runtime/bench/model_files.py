"""The files of a model in the forms that engines read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .roofline import Stored

GGUF_DTYPES = {"ALL_F32": "float32", "MOSTLY_F16": "float16", "MOSTLY_BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Where a model is; None where it does not exist in a form.

    Attributes:
        folder: a Hugging Face checkpoint.
        gguf: a GGUF file.
    """

    folder: Path | None = None
    gguf: Path | None = None


def model_files(model: str | Mapping[str, object]) -> ModelFiles:
    """Return the files of a ``model:`` value, converting a GGUF file that was not yet converted.

    An architecture with random weights has none: other engines could not load it.

    Raises:
        ModelError: there is no such model.
    """
    from ..models.converted import convert_gguf
    from ..models.locations import resolve_model

    if isinstance(model, Mapping):
        return ModelFiles()
    path = resolve_model(model)
    return ModelFiles(path) if path.is_dir() else ModelFiles(convert_gguf(path).folder, path)


def gguf_stored(path: str | Path) -> Stored:
    """Return how a GGUF file stores its weights; bytes are the mean over all tensors."""
    import gguf

    reader = gguf.GGUFReader(path)
    field = reader.get_field("general.file_type")
    kind = gguf.LlamaFileType(field.contents()).name if field else "unknown"
    tensors = reader.tensors
    num_bytes, num_weights = (
        sum(int(getattr(tensor, name)) for tensor in tensors) for name in ("n_bytes", "n_elements")
    )
    name = GGUF_DTYPES.get(kind, kind.removeprefix("MOSTLY_").lower())
    return Stored(name, num_bytes / num_weights)
