"""Memory for what graphs compute in between, shared by all graphs of one kernel set."""

from __future__ import annotations

from torch import Tensor, uint8

from .memory import Arena
from .operators import TensorSpec


class BufferPool:
    """Chunks of memory that are lent while one graph is lowered.

    Graphs never run at the same time: every lowering starts with all chunks free, and so they all
    use the same ones. Chunks are never returned, because commands hold their addresses.
    """

    def __init__(self, arena: Arena) -> None:
        """Start empty; chunks will come from ``arena``."""
        self._arena = arena
        self._chunks: list[Tensor] = []
        self._free: list[Tensor] = []

    @property
    def num_bytes(self) -> int:
        """Bytes of all chunks."""
        return sum(chunk.numel() for chunk in self._chunks)

    def start(self) -> None:
        """Take back everything: another graph is lowered from here on."""
        self._free = list(self._chunks)

    def take(self, spec: TensorSpec) -> tuple[Tensor, Tensor]:
        """Return a tensor of this spec in the smallest free chunk that fits, and the chunk."""
        num_bytes = max(1, spec.num_elements * spec.dtype.itemsize)
        fitting = [i for i, chunk in enumerate(self._free) if chunk.numel() >= num_bytes]
        if fitting:
            chunk = self._free.pop(min(fitting, key=lambda i: self._free[i].numel()))
        else:
            chunk = self._arena.zeros((num_bytes,), uint8)
            self._chunks.append(chunk)
        used = chunk[: spec.num_elements * spec.dtype.itemsize]
        return used.view(spec.dtype).view(spec.shape), chunk

    def give(self, chunk: Tensor) -> None:
        """Take one chunk back."""
        self._free.append(chunk)
