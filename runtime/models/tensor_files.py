"""Tensors of safetensors files, read through a memory map when they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a file says of one tensor; ``dtype`` as safetensors spells it ("BF16")."""

    shape: tuple[int, ...]
    dtype: str


class TensorFiles(Mapping[str, Tensor]):
    """The tensors of several files under one set of names.

    ``damaged`` maps a file that cannot be read to the reason, ``duplicates`` lists names that
    more than one file holds. Tensors are views of the mapped file: do not write to them.
    """

    def __init__(self, paths: list[Path]) -> None:
        """Read the headers of ``paths``; no tensor data."""
        self.damaged: dict[Path, str] = {}
        self.duplicates: list[str] = []
        self.headers: dict[str, TensorHeader] = {}
        self._files: dict[str, Any] = {}
        for path in paths:
            self._add(path)

    def _add(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            self.damaged[path] = " ".join(str(error).split())
            return
        for name in file.keys():  # noqa: SIM118 - a handle of safetensors, not a dict
            if name in self._files:
                self.duplicates.append(name)
            piece = file.get_slice(name)
            self.headers[name] = TensorHeader(tuple(piece.get_shape()), piece.get_dtype())
            self._files[name] = file

    def __getitem__(self, name: str) -> Tensor:
        """Return a view of the mapped file."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def __contains__(self, name: object) -> bool:
        """Tell without reading."""
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        """Iterate over names."""
        return iter(self._files)

    def __len__(self) -> int:
        """Count tensors."""
        return len(self._files)
