"""Reading and writing tensors as instructions do: bounds, initialised bits, start partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dtypes import INTEGERS, Array, from_float32, numpy_dtype, to_float32
from .enums import ON_CHIP, MemoryRegion
from .errors import call_site, fail
from .machine import Machine, machine
from .registers import VirtualRegister
from .tensor import MAX_DIMS, NkiTensor, check_pattern
from .trace import Instruction, Operand, Transfer
from .view import View

WRITTEN = {1: 0x01, 2: 0x0101, 4: 0x01010101}  # one byte 1 per byte of an element
_UNSIGNED: dict[int, np.dtype[Any]] = {
    1: np.dtype(np.uint8),
    2: np.dtype(np.uint16),
    4: np.dtype(np.uint32),
}
_COMPUTE_STARTS = ((32, (0, 32, 64, 96)), (64, (0, 64)), (128, (0,)))


class NkiInstruction:
    """What an ``nki.isa`` function returns; in a sequential simulator it orders nothing."""

    def depends_on(self, *producers: NkiInstruction) -> NkiInstruction:
        """Accept a scheduling dependency, which execution in program order meets already."""
        return self


def tile(value: object, role: str, buffers: tuple[MemoryRegion, ...] = ON_CHIP) -> NkiTensor:
    """Check that an operand is a tile that a compute engine can stream.

    Raises:
        SimulationError: no tensor, in another buffer (vectors of indices are in HBM only), with too
            many dimensions, or at a partition where tensors of its height cannot start.
    """
    found = tensor(value, role, buffers)
    if found.ndim > MAX_DIMS:
        fail(f"{role} {found!r} has {found.ndim} dimensions, an access pattern at most {MAX_DIMS}")
    start = found.offset * found.itemsize // found.storage.row_bytes
    if found.storage.life.address is not None:
        start += found.storage.life.address[0]
    count = found.shape[0]
    allowed = next(starts for limit, starts in _COMPUTE_STARTS if count <= limit)
    if start not in allowed:
        fail(
            f"{role} {found!r} starts at partition {start}; a tensor of {count} partitions "
            f"starts at one of {allowed}"
        )
    return found


def tensor(value: object, role: str, buffers: tuple[MemoryRegion, ...]) -> NkiTensor:
    """Check that an operand is a tensor in one of some buffers."""
    if not isinstance(value, NkiTensor):
        fail(f"{role} must be a tensor, got {value!r}")
    if value.buffer not in buffers:
        names = " or ".join(buffer.value for buffer in buffers)
        fail(f"{role} must be in {names}, got {value!r}")
    return value


def same_size(**views: View) -> None:
    """Check that tiles agree in partitions and in elements per partition."""
    sizes = {role: (view.shape[0], view.size // view.shape[0]) for role, view in views.items()}
    if len(set(sizes.values())) > 1:
        shapes = ", ".join(f"{role} {view.shape}" for role, view in views.items())
        fail(f"partitions and elements per partition must agree: {shapes}")


def index_value(index: View | VirtualRegister) -> int:
    """Return a run-time index."""
    if isinstance(index, VirtualRegister):
        return index.value
    if index.size != 1 or index.dtype not in ("int32", "uint32"):
        fail(f"a scalar index must be one int32 or uint32 element, got {index!r}")
    return int(read(index, "index").reshape(()))


def resolved(view: View, role: str) -> View:
    """Return the direct view that a scalar index leads to.

    Raises:
        SimulationError: the index is out of bounds.
    """
    found = view.indirection
    if found is None or found.is_vector:
        return view
    value = index_value(found.index)
    if not 0 <= value < found.limit:
        fail(f"{role}: run-time index {value} is out of bounds 0..{found.limit - 1}")
    offset = view.offset + value * found.stride
    direct = view.like(view.shape, view.strides, offset, indirection=None)
    check_pattern(direct)
    return direct


def window(view: View, data: Array | None = None) -> Array:
    """Return the numpy view of a direct view: of its elements, or of a mask laid out like them."""
    dtype = numpy_dtype(view.dtype)
    size = dtype.itemsize
    if data is not None:
        dtype = _UNSIGNED[size]
    buffer = view.storage.data if data is None else data
    strides = tuple(step * size for step in view.strides)
    return np.ndarray(view.shape, dtype, buffer, view.offset * size, strides)


def read(view: View, role: str) -> Array:
    """Return the elements of a view, in its shape.

    Raises:
        SimulationError: some of them were never written.
    """
    direct = resolved(view, role)
    note_use(direct)
    if not direct.storage.complete:
        check_written(direct, role, window(direct, direct.storage.written))
    return window(direct)


def check_written(view: View, role: str, mask: Array) -> None:
    """Check the initialised bits of some elements of a view."""
    if not view.is_on_chip and not machine().strict_hbm:
        return
    missing = mask != WRITTEN[view.itemsize]
    if missing.any():
        first = tuple(int(i) for i in np.argwhere(missing)[0])
        fail(
            f"{role} reads uninitialised memory: {int(missing.sum())} of {missing.size} elements "
            f"of {view!r} were never written, the first at {first}"
        )
    if mask.size * view.itemsize == view.storage.data.size:
        view.storage.complete = True


def read_float32(view: View, role: str) -> NDArray[np.float32]:
    """Return a tile as fp32, flattened to [partitions, elements]."""
    return to_float32(read(view, role)).reshape(view.shape[0], -1)


def write(view: View, values: Array, role: str = "dst", by_matmul: bool = False) -> None:
    """Store values of the view's dtype and size, and mark them written."""
    direct = resolved(view, role)
    refuse_broadcast(direct, role)
    destination = writable(direct, role)
    destination[...] = values.reshape(direct.shape)
    mark_written(direct, by_matmul=by_matmul)


def write_float32(view: View, values: NDArray[np.float32], role: str = "dst") -> None:
    """Narrow fp32 results to the view's dtype and store them."""
    write(view, from_float32(values, view.dtype), role)


def writable(view: View, role: str) -> Array:
    """Return the elements of a view that is about to be written."""
    elements = window(view)
    if not elements.flags.writeable:
        fail(f"{role} {view!r} is a read-only array of the caller")
    return elements


def refuse_broadcast(view: View, role: str) -> None:
    """Check that a destination has one place per element."""
    if any(step == 0 and n > 1 for n, step in zip(view.shape, view.strides, strict=True)):
        fail(f"{role} {view!r} repeats elements (strides {view.strides}) and cannot be written")


def mark_written(view: View, rows: Array | None = None, by_matmul: bool = False) -> None:
    """Note that elements of a view, or some of its rows, now hold values."""
    storage = view.storage
    note_use(view)
    storage.mutated = storage.mutated or storage.is_input
    where = slice(None) if rows is None else rows
    if storage.buffer is MemoryRegion.psum:
        window(view, storage.by_matmul)[where] = WRITTEN[view.itemsize] if by_matmul else 0
    if storage.complete:
        return
    window(view, storage.written)[where] = WRITTEN[view.itemsize]
    if rows is None and view.size * view.itemsize == storage.data.size:
        storage.complete = True


def note_use(view: View) -> None:
    """Extend the life of an on-chip tensor to the current instruction."""
    if view.is_on_chip:
        view.storage.life.use(machine().clock)


def column(value: float | View, role: str, partitions: int) -> Array | np.float32:
    """Return a constant as fp32, or a ``(partitions, 1)`` fp32 tile's values.

    Raises:
        SimulationError: the tile has another shape or dtype.
    """
    if not isinstance(value, View):
        if isinstance(value, bool) or not isinstance(value, int | float | np.number):
            fail(f"{role} must be a number or a tile, got {value!r}")
        return np.float32(value)
    found = vector(value, role, partitions)
    if found.dtype != "float32":
        fail(f"{role} must be float32, got {found!r}")
    return read_float32(found, role)


def vector(value: object, role: str, partitions: int) -> NkiTensor:
    """Check a tile of one element per partition."""
    found = tile(value, role)
    if found.shape[0] != partitions or found.size != partitions:
        fail(f"{role} must have shape ({partitions}, 1), got {found!r}")
    return found


def is_integer(view: View) -> bool:
    """Return whether a tensor's dtype is an integer."""
    return view.dtype in INTEGERS


def record(
    core: Machine,
    engine: str,
    label: str | None,
    operands: dict[str, View],
    elements: int = 0,
    transfer: Transfer | None = None,
) -> NkiInstruction:
    """Add the finished instruction to the trace, if there is one."""
    if core.trace is not None:
        name, where = call_site()
        seen = [
            Operand(role, view.name, view.shape, view.dtype, view.buffer.value)
            for role, view in operands.items()
        ]
        on_chip = [view for view in operands.values() if view.is_on_chip]
        core.trace.instructions.append(
            Instruction(
                engine,
                name,
                label or "",
                where,
                tuple(seen),
                max((view.shape[0] for view in on_chip), default=0),
                elements or max((view.size // view.shape[0] for view in on_chip), default=0),
                transfer,
            )
        )
    return NkiInstruction()
