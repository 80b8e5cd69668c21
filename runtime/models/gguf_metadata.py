"""Typed reading of the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..value_text import value_text


@dataclass(frozen=True, slots=True)
class GgufMetadata:
    """Values by key; those of the architecture are read without its name before them."""

    path: Path
    values: Mapping[str, Any]

    @property
    def architecture(self) -> object:
        """What ``general.architecture`` says: the first part of the keys of the model."""
        return self.values.get("general.architecture")

    def error(self, message: str) -> ModelError:
        """Build the error for this file."""
        return ModelError(f"{self.path}: {message}")

    def key(self, key: str) -> str:
        """Return the whole key."""
        return f"{self.architecture}.{key}"

    def value(self, key: str, default: object = None) -> Any:
        """Return a value of the model; a list is one value per layer, which must be the same.

        Raises:
            ModelError: there is none, or layers differ.
        """
        value = self.values.get(self.key(key), default)
        if isinstance(value, list):
            if len(set(value)) != 1:
                raise self.error(
                    f"metadata {self.key(key)} differs by layer, which is not supported"
                )
            value = value[0]
        if value is None:
            raise self.error(f"metadata {self.key(key)} is missing")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """Read a positive integer."""
        value = self.value(key, default)
        if not is_integer(value) or value < 1:
            shown = value_text(value)
            raise self.error(f"metadata {self.key(key)} is {shown}; must be a positive integer")
        return int(value)

    def has(self, key: str) -> bool:
        """Tell whether there is a value other than 0, which stands for none."""
        return self.values.get(self.key(key)) not in (None, 0)

    def number(self, key: str, default: float | None = None) -> float:
        """Read a float that the file holds in fp32 as the decimal that was meant (1e-05)."""
        value = self.value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            shown = value_text(value)
            raise self.error(f"metadata {self.key(key)} is {shown}; must be a number")
        return float(str(np.float32(value)))

    def head_dim(self) -> int:
        """Read the head dim of queries and keys, which values must share."""
        default = self.size("embedding_length") // self.size("attention.head_count")
        head_dim = self.size("attention.key_length", default)
        if self.size("attention.value_length", head_dim) != head_dim:
            key, other = self.key("attention.value_length"), self.size("attention.value_length")
            raise self.error(f"{key} {other} differs from head_dim {head_dim}")
        return head_dim


def is_integer(value: object) -> bool:
    """Tell integers from booleans and the rest."""
    return isinstance(value, int) and not isinstance(value, bool)
