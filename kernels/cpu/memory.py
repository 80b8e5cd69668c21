"""Memory on large pages, for what is read at every step: weights, caches, static buffers.

With pages of 4 KiB the translation of addresses costs a step about a tenth of its time: weights
alone span more pages than a processor's tables hold.
"""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

HUGE_PAGE = 2 * 2**20
"""Bytes of a large page on x86-64 and on Arm with small pages of 4 KiB."""
_PIECE = 32 * HUGE_PAGE
_LINE = 64
_PAGE = 4096


class Arena:
    """Hands out tensors side by side from large pieces of memory.

    A piece starts at a multiple of ``HUGE_PAGE``, and the system is asked for large pages; where
    it has none, nothing but the alignment is left. A piece lives as long as a tensor in it.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._piece: mmap.mmap | None = None
        self._start = self._end = 0

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return contiguous zeros with a storage of their own, from a cache line's start on.

        Raises:
            MemoryError: the system does not give so much; names the number of bytes.
        """
        count = math.prod(shape)
        if count == 0:
            return torch.zeros(tuple(shape), dtype=dtype)
        num_bytes = count * dtype.itemsize
        if self._piece is None or num_bytes > self._end - self._start:
            self._piece, self._start, self._end = _new_piece(num_bytes)
        flat = torch.frombuffer(self._piece, dtype=dtype, count=count, offset=self._start)
        self._start += -(-num_bytes // _LINE) * _LINE
        # Memory is new, and so zero, but pages that nobody wrote to would come one by one later.
        flat.view(torch.uint8)[::_PAGE].zero_()
        return flat.view(tuple(shape))


class NoMemory(Arena):
    """Hands out tensors of the device meta: shapes without numbers, for tracing."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor without memory."""
        return torch.empty(tuple(shape), dtype=dtype, device="meta")


def _new_piece(num_bytes: int) -> tuple[mmap.mmap, int, int]:
    """Return fresh memory for at least so many bytes, and where its aligned part lies in it."""
    size = -(-max(num_bytes, _PIECE) // HUGE_PAGE) * HUGE_PAGE
    try:
        piece = mmap.mmap(-1, size + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError) as error:
        raise MemoryError(f"no memory for {num_bytes:,} bytes: {error}") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without large pages
            piece.madvise(mmap.MADV_HUGEPAGE)
    start = -torch.frombuffer(piece, dtype=torch.uint8).data_ptr() % HUGE_PAGE
    return piece, start, start + size
