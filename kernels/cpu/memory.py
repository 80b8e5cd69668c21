"""Memory on large pages, for what is read at every step: weights, caches, static buffers.

With pages of 4 KiB the translation of addresses costs a step about a tenth of its time: weights
alone span more pages than a processor's tables hold.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import mmap
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

HUGE_PAGE = 2 * 2**20
"""Bytes of a large page on x86-64 and on Arm with small pages of 4 KiB."""
_PIECE = 32 * HUGE_PAGE
_LINE = 64
_MADV_POPULATE_WRITE = 23
"""Of Linux 5.14 and later: makes pages writable without changing what they hold."""


class Arena:
    """Hands out tensors side by side from large pieces of memory.

    A piece starts at a multiple of ``HUGE_PAGE``, and the system is asked for large pages; where
    it has none, nothing but the alignment is left. A piece lives as long as a tensor in it.

    Pages that nobody wrote to would come one by one, while steps run. They are fetched by a
    thread of its own: in a virtual machine whose host has not given it the memory yet, that takes
    seconds per gigabyte, in which the processor has nothing to do.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._piece: mmap.mmap | None = None
        self._start = self._end = 0
        self._can_populate = _can_populate()
        self._fetcher: ThreadPoolExecutor | None = None
        self._fetched: list[Future[None]] = []

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return contiguous zeros with a storage of their own, from a cache line's start on.

        They can be used at once; ``settle`` tells when all of their pages are there.

        Raises:
            MemoryError: the system does not give so much; names the number of bytes.
        """
        tensor = self.unfetched_zeros(shape, dtype)
        if tensor.numel() == 0:
            return tensor
        if self._can_populate:
            self._fetcher = self._fetcher or ThreadPoolExecutor(1, "memory")
            self._fetched.append(self._fetcher.submit(_fetch, tensor))
        else:  # now, while nobody else writes: it is new, and so zero
            tensor.view(-1).view(torch.uint8)[:: mmap.PAGESIZE] = 0
        return tensor

    def settle(self) -> None:
        """Wait until all pages of what was handed out are there.

        Raises:
            MemoryError: the system does not give a page.
        """
        fetched, self._fetched = self._fetched, []
        for one in fetched:
            one.result()
        if self._fetcher is not None:
            self._fetcher.shutdown()
            self._fetcher = None

    def unfetched_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return the same for who writes to all of it now: pages come with the first write."""
        count = math.prod(shape)
        if count == 0:
            return torch.zeros(tuple(shape), dtype=dtype)
        num_bytes = count * dtype.itemsize
        if self._piece is None or num_bytes > self._end - self._start:
            self._piece, self._start, self._end = _new_piece(num_bytes)
        flat = torch.frombuffer(self._piece, dtype=dtype, count=count, offset=self._start)
        self._start += -(-num_bytes // _LINE) * _LINE
        return flat.view(tuple(shape))


class NoMemory(Arena):
    """Hands out tensors of the device meta: shapes without numbers, for tracing."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor without memory."""
        return torch.empty(tuple(shape), dtype=dtype, device="meta")

    unfetched_zeros = zeros


def _fetch(tensor: Tensor) -> None:
    """Have all pages of a tensor, whatever others write to it meanwhile."""
    before = tensor.data_ptr() % mmap.PAGESIZE
    problem = _populate(tensor.data_ptr() - before, before + tensor.nbytes)
    if problem:
        raise MemoryError(f"no memory for {tensor.nbytes:,} bytes: {os.strerror(problem)}")


def _populate(start: int, num_bytes: int) -> int:
    """Ask the system for the pages of a range; return 0 or an errno."""
    # By ctypes, because the method of mmap would hold the interpreter's lock meanwhile.
    madvise = ctypes.CDLL(None, use_errno=True).madvise
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    failed = madvise(start, num_bytes, _MADV_POPULATE_WRITE) != 0
    return ctypes.get_errno() if failed else 0


def _can_populate() -> bool:
    """Tell whether the system knows the request, by one for nothing."""
    return sys.platform == "linux" and _populate(0, 0) == 0


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
