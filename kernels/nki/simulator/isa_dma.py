"""``nki.isa.dma_copy``: direct, gathering and scattering copies between HBM and SBUF."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from . import enums
from .access import (
    NkiInstruction,
    check_written,
    index_value,
    mark_written,
    note_use,
    read,
    record,
    refuse_broadcast,
    tensor,
    window,
    writable,
    write,
)
from .dtypes import Array, convert
from .enums import MemoryRegion, dge_mode, engine, nc_version, oob_mode
from .errors import fail
from .generation import Generation
from .machine import Machine, tick
from .tensor import NkiTensor
from .trace import Transfer
from .view import View

DMA_BUFFERS = (MemoryRegion.sbuf, MemoryRegion.private_hbm, MemoryRegion.shared_hbm)


def dma_copy(
    dst: NkiTensor,
    src: NkiTensor,
    priority: int | None = None,
    oob_mode: oob_mode = oob_mode.error,
    dge_mode: dge_mode = dge_mode.unknown,
    engine: engine = engine.unknown,
    name: str | None = None,
) -> NkiInstruction:
    """Copy ``src`` to ``dst``; rows or start addresses may come from run-time indices.

    Equal dtypes are copied bit by bit, others by way of fp32. With ``oob_mode.skip`` what an
    index outside its tensor asks for is not transferred, and the destination keeps what it held.
    """
    core = tick()
    tensor(dst, "dst", DMA_BUFFERS)
    tensor(src, "src", DMA_BUFFERS)
    if dst.size != src.size:
        fail(f"dst {dst!r} has {dst.size} elements, src {src!r} has {src.size}")
    sides = {"dst": dst, "src": src}
    indirect = {role: view for role, view in sides.items() if view.is_indirect()}
    vectors = [role for role, view in indirect.items() if is_vector(view)]
    check_modes(core.generation, priority, dge_mode, engine, bool(vectors))
    if dge_mode is enums.dge_mode.hwdge and dst.dtype != src.dtype:
        fail(f"hwdge cannot convert {src.dtype} to {dst.dtype}")
    if dge_mode is enums.dge_mode.none and indirect:
        fail("dge_mode.none has its descriptors made before the run and takes no run-time index")
    if oob_mode is enums.oob_mode.skip and not indirect:
        fail("oob_mode.skip on a direct copy: neither dst nor src has a run-time index")
    refuse_broadcast(dst, "dst")
    if vectors:
        return _copy_rows(core, sides, vectors, oob_mode, name)
    skipped = any(is_outside(view, role, oob_mode) for role, view in indirect.items())
    if not skipped:
        write(dst, convert(read(src, "src"), dst.dtype))
    moved = transfer_of(dst, src, 0 if skipped else None, dge_mode)
    return record(core, "dma", name, dict(sides), transfer=moved)


def check_modes(
    generation: Generation,
    priority: int | None,
    dge: dge_mode,
    trigger: engine,
    has_vector: bool,
) -> None:
    """Check priority, descriptor generation and its engine against the generation."""
    if priority is not None:
        if not generation.at_least(nc_version.gen4):
            fail(f"priority needs trn3, the target is {generation.name}")
        if priority not in range(4):
            fail(f"priority must be 0 to 3, got {priority!r}")
    if dge is dge_mode.hwdge and not generation.at_least(nc_version.gen3):
        fail(f"hwdge needs trn2, the target is {generation.name}")
    if trigger is not engine.unknown and dge is not dge_mode.hwdge:
        fail(f"engine={trigger} is for dge_mode.hwdge only, got {dge}")
    if trigger not in (engine.unknown, engine.sync, engine.scalar):
        fail(f"hwdge is triggered by engine.sync or engine.scalar, got {trigger}")
    if has_vector and dge not in (dge_mode.unknown, dge_mode.swdge):
        fail(f"a vector of indices needs swdge, got {dge}")
    if has_vector and not generation.at_least(nc_version.gen3):
        fail(f"a vector of indices needs trn2, the target is {generation.name}")


def is_vector(view: View) -> bool:
    """Return whether each row of a view has an index of its own."""
    return view.indirection is not None and view.indirection.is_vector


def is_outside(view: View, role: str, mode: oob_mode) -> bool:
    """Return whether a scalar index is out of bounds and may be skipped.

    Raises:
        SimulationError: it is out of bounds and ``mode`` is error.
    """
    found = view.indirection
    assert found is not None
    value = index_value(found.index)
    outside = not 0 <= value < found.limit
    if outside and mode is oob_mode.error:
        fail(f"{role}: run-time index {value} is out of bounds 0..{found.limit - 1}")
    return outside


def _copy_rows(
    core: Machine, sides: dict[str, NkiTensor], vectors: list[str], mode: oob_mode, name: str | None
) -> NkiInstruction:
    dst, src = sides["dst"], sides["src"]
    if len(sides) - len(vectors) != 1:
        fail("dst and src both have a vector of indices; one side must be direct")
    role = vectors[0]
    view, other = (dst, src) if role == "dst" else (src, dst)
    if other.is_indirect():
        fail("one side has a vector of indices, the other a scalar one; it must be direct")
    if role == "dst" and src.buffer is not MemoryRegion.sbuf:
        fail(f"the source of a scatter must be in sbuf, got {src!r}")
    index = _row_index(view)
    if other.shape[0] != view.shape[0]:
        fail(f"{role} picks {view.shape[0]} rows, the other side has {other.shape[0]}")
    live = live_rows(view, role, index, mode)
    rows, picked = np.flatnonzero(live), index[live]
    source = rows if role == "dst" else picked
    target = picked if role == "dst" else rows
    if role == "dst" and len(set(picked.tolist())) < len(picked):
        fail("a scatter writes the same row twice, in an order that is not defined")
    src_rows, dst_rows = (row_window(v) if v is view else v for v in (src, dst))
    note_use(src)
    if not src.storage.complete:
        check_written(src, "src", window(src_rows, src.storage.written)[source])
    values = convert(window(src_rows)[source], dst.dtype)
    writable(dst_rows, "dst")[target] = values.reshape(len(rows), *dst.shape[1:])
    mark_written(dst_rows, rows=target)
    moved = transfer_of(dst, src, len(rows), dge_mode.swdge, role)
    operands: dict[str, View] = {**sides, "indices": _index_of(view)}
    return record(core, "dma", name, operands, transfer=moved)


def _index_of(view: View) -> View:
    found = view.indirection
    assert found is not None
    assert isinstance(found.index, View)
    return found.index


def _row_index(view: View) -> NDArray[np.int64]:
    index = _index_of(view)
    if index.shape != (view.shape[0], 1):
        fail(f"{view.shape[0]} rows need indices of shape ({view.shape[0]}, 1), got {index!r}")
    return read(index, "indices").astype(np.int64).reshape(-1)


def live_rows(view: View, role: str, index: Array, mode: oob_mode) -> NDArray[np.bool_]:
    """Return which indices are in bounds; negative ones never are.

    Raises:
        SimulationError: some are not, and ``mode`` is error.
    """
    found = view.indirection
    assert found is not None
    live = np.asarray((index >= 0) & (index < found.limit))
    if mode is oob_mode.error and not live.all():
        bad = [int(i) for i in index[~live][:4]]
        fail(
            f"{role}: {int((~live).sum())} of {live.size} indices are out of bounds "
            f"0..{found.limit - 1}: {bad}"
        )
    reach = sum(step * (n - 1) for step, n in zip(view.strides[1:], view.shape[1:], strict=True))
    size = view.storage.data.size // view.itemsize
    last = view.offset + int(index[live].max(initial=0)) * found.stride + reach
    if live.any() and last >= size:
        fail(
            f"{role}: pattern {view.get_pattern()} at offset {view.offset} leaves {view!r} at "
            f"index {int(index[live].max())}: element {last} of {size}"
        )
    return live


def row_window(view: View) -> View:
    """Return a direct view of every row that an index may pick."""
    found = view.indirection
    assert found is not None
    reach = sum(step * (n - 1) for step, n in zip(view.strides[1:], view.shape[1:], strict=True))
    size = view.storage.data.size // view.itemsize
    count = min(found.limit, (size - 1 - view.offset - reach) // found.stride + 1)
    strides = (found.stride, *view.strides[1:])
    return view.like((count, *view.shape[1:]), strides, view.offset, indirection=None)


def transfer_of(
    dst: View, src: View, live: int | None, dge: dge_mode, indirect: str = ""
) -> Transfer:
    """Describe a copy of ``live`` of the rows of ``dst`` (None: all of them)."""
    itemsize = dst.itemsize
    row_bytes = dst.size // dst.shape[0] * itemsize
    run = min(run_elements(dst), run_elements(src)) * itemsize
    rows = dst.shape[0] if live is None else live
    moved = rows * row_bytes
    return Transfer(
        bytes=moved,
        bytes_skipped=dst.size * itemsize - moved,
        descriptors=moved // run,
        run_bytes=run,
        live_partitions=live_partitions(dst, src, rows),
        dge=dge.name,
        indirect=indirect,
    )


def live_partitions(dst: View, src: View, rows: int) -> int:
    """Return the partitions of the side in SBUF that take part, or the rows without one."""
    on_chip = [view for view in (dst, src) if view.is_on_chip]
    return min([rows, *(view.shape[0] for view in on_chip)])


def run_elements(view: View) -> int:
    """Return how many elements lie one after another; at most one partition or indirect row."""
    first = 1 if view.is_on_chip or is_vector(view) else 0
    run = 1
    for size, step in reversed(list(zip(view.shape, view.strides, strict=True))[first:]):
        if size > 1 and step != run:
            break
        run *= size
    return run
