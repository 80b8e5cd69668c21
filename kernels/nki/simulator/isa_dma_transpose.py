"""``nki.isa.dma_transpose``: transposition by the DMA engines, direct or with gathered rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import enums
from .access import (
    NkiInstruction,
    check_written,
    mark_written,
    read,
    record,
    refuse_broadcast,
    tensor,
    window,
    writable,
    write,
)
from .enums import MemoryRegion, dge_mode, oob_mode
from .errors import fail
from .generation import NUM_PARTITIONS
from .isa_dma import DMA_BUFFERS, check_modes, is_outside, is_vector, live_rows, row_window
from .machine import Machine, tick
from .tensor import NkiTensor
from .trace import Transfer
from .view import View

AXES = {2: (1, 0), 3: (2, 1, 0), 4: (3, 1, 2, 0)}
GROUP = 16  # rows that an indirect transpose handles at a time
HWDGE_ROWS = {2: (16,), 3: (1, 2, 4, 8, 16), 4: (1, 2, 4, 8, 16)}


def dma_transpose(
    dst: NkiTensor,
    src: NkiTensor,
    axes: tuple[int, ...] | None = None,
    priority: int | None = None,
    dge_mode: dge_mode = dge_mode.unknown,
    oob_mode: oob_mode = oob_mode.error,
    name: str | None = None,
) -> NkiInstruction:
    """Write ``src`` with its first and last dimensions exchanged to ``dst`` in SBUF.

    With a vector of indices, row i of ``src`` is the row that entry i of the indices, read column
    by column, names; rows that ``oob_mode.skip`` skips leave their columns of ``dst`` as they are.
    """
    core = tick()
    tensor(dst, "dst", (MemoryRegion.sbuf,))
    tensor(src, "src", DMA_BUFFERS)
    if src.ndim not in AXES or (axes is not None and tuple(axes) != AXES[src.ndim]):
        fail(f"axes {axes} of a {src.ndim}-d src; supported are {list(AXES.values())}")
    order = AXES[src.ndim]
    shape = tuple(src.shape[axis] for axis in order)
    if dst.shape != shape:
        fail(f"dst must have the transposed shape {shape}, got {dst!r}")
    if dst.dtype != src.dtype:
        fail(f"dst and src must have one dtype, got {dst.dtype} and {src.dtype}")
    refuse_broadcast(dst, "dst")
    check_modes(core.generation, priority, dge_mode, enums.engine.unknown, is_vector(src))
    if dst.is_indirect():
        fail("dst must be direct")
    if is_vector(src):
        return _gather_transpose(core, dst, src, oob_mode, name)
    if dge_mode not in (enums.dge_mode.unknown, enums.dge_mode.hwdge):
        fail(f"a direct transpose takes dge_mode unknown or hwdge, got {dge_mode}")
    if dge_mode is enums.dge_mode.hwdge:
        _check_hwdge(src)
    if oob_mode is enums.oob_mode.skip and not src.is_indirect():
        fail("oob_mode.skip on a direct src")
    skipped = src.is_indirect() and is_outside(src, "src", oob_mode)
    if not skipped:
        write(dst, read(src, "src").transpose(order))
    moved = _transfer(src, 0 if skipped else src.shape[0], dge_mode, "")
    return record(core, "dma", name, {"dst": dst, "src": src}, transfer=moved)


def _check_hwdge(src: View) -> None:
    if src.shape[0] not in HWDGE_ROWS[src.ndim]:
        fail(f"hwdge transposes {HWDGE_ROWS[src.ndim]} rows, src has shape {src.shape}")
    if src.ndim > 2 and src.shape[0] * src.shape[-2] % GROUP:
        fail(f"hwdge needs src.shape[0] * src.shape[-2] to be a multiple of 16, got {src.shape}")
    _check_element(src)


def _check_element(src: View) -> None:
    # The last dimension is at most 128 already: it becomes the partitions of dst.
    if src.itemsize != 2:
        fail(f"src must have a 2-byte dtype, got {src.dtype}")


def _gather_transpose(
    core: Machine, dst: NkiTensor, src: NkiTensor, mode: oob_mode, name: str | None
) -> NkiInstruction:
    indices = _checked_indices(src)
    flat: NDArray[np.int64] = read(indices, "indices").astype(np.int64).T.reshape(-1)
    flat = flat[: src.shape[0]]
    live = live_rows(src, "src", flat, mode)
    num_live = int(live.sum())
    if num_live % GROUP:
        fail(
            f"{num_live} of {live.size} indices are in bounds; an indirect transpose needs a "
            f"multiple of {GROUP}"
        )
    columns, picked = np.flatnonzero(live), flat[live]
    rows = row_window(src)
    if not src.storage.complete:
        check_written(src, "src", window(rows, src.storage.written)[picked])
    values = window(rows)[picked].transpose(AXES[src.ndim])
    # The last dimension of dst is the rows; a view with it first lets rows be marked alone.
    last = dst.ndim - 1
    turned = dst.like(
        (dst.shape[last], *dst.shape[:last]), (dst.strides[last], *dst.strides[:last]), dst.offset
    )
    writable(turned, "dst")[columns] = np.moveaxis(values, last, 0)
    mark_written(turned, rows=columns)
    operands: dict[str, View] = {"dst": dst, "src": src, "indices": indices}
    moved = _transfer(src, num_live, dge_mode.swdge, "src")
    return record(core, "dma", name, operands, transfer=moved)


def _checked_indices(src: View) -> View:
    found = src.indirection
    assert found is not None
    indices = found.index
    assert isinstance(indices, View)
    if src.ndim == 4 and 1 not in src.shape[1:3]:
        fail(f"dimension 1 or 2 of a 4-d src must be 1, got {src.shape}")
    _check_element(src)
    if src.shape[0] % GROUP:
        fail(f"src.shape[0] must be a multiple of {GROUP}, got {src.shape}")
    rows, cols = indices.shape
    if indices.dtype != "uint32":
        fail(f"indices must be uint32, got {indices!r}")
    if rows % GROUP or not GROUP <= rows <= NUM_PARTITIONS:
        fail(f"indices.shape[0] must be a multiple of 16 in 16..128, got {indices!r}")
    if cols > 1 and rows != NUM_PARTITIONS:
        fail(f"indices of more than one column must have 128 rows, got {indices!r}")
    if rows * cols < src.shape[0]:
        fail(f"{rows * cols} indices are too few for the {src.shape[0]} rows of src")
    return indices


def _transfer(src: View, rows: int, dge: dge_mode, indirect: str) -> Transfer:
    row_bytes = src.size // src.shape[0] * src.itemsize
    run = src.shape[-1] * src.itemsize if src.strides[-1] == 1 else src.itemsize
    return Transfer(
        bytes=rows * row_bytes,
        bytes_skipped=(src.shape[0] - rows) * row_bytes,
        descriptors=rows * row_bytes // run,
        run_bytes=run,
        live_partitions=src.shape[-1] if rows else 0,
        dge=dge.name,
        indirect=indirect,
        transpose=True,
    )
