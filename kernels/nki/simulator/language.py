"""What the simulator offers as ``nki.language``: tensors, dtypes, loops and operator tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from . import isa_compound, isa_copy, isa_dma, isa_elementwise
from .capacity import check_alone
from .enums import ON_CHIP, MemoryRegion
from .errors import fail
from .generation import NUM_PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS
from .machine import machine
from .memory import Storage, allocate
from .objects import NKIObject as NKIObject
from .ops import TOKENS
from .registers import VirtualRegister
from .tensor import NkiTensor
from .view import DynamicSlice

DType = str

bool_ = "bool"
int8 = "int8"
int16 = "int16"
int32 = "int32"
uint8 = "uint8"
uint16 = "uint16"
uint32 = "uint32"
float16 = "float16"
float32 = "float32"
bfloat16 = "bfloat16"
tfloat32 = "tfloat32"
float8_e4m3 = "float8_e4m3"
float8_e4m3fn = "float8_e4m3fn"
float8_e5m2 = "float8_e5m2"
float8_e8m0fnu = "float8_e8m0fnu"
float8_e5m2_x4 = "float8_e5m2_x4"
float8_e4m3fn_x4 = "float8_e4m3fn_x4"
float4_e2m1fn_x4 = "float4_e2m1fn_x4"

sbuf = MemoryRegion.sbuf
psum = MemoryRegion.psum
private_hbm = MemoryRegion.private_hbm
hbm = private_hbm
shared_hbm = MemoryRegion.shared_hbm


def __getattr__(name: str) -> Any:
    """Offer the operator tokens as attributes: ``nl.add`` and so on."""
    if name in TOKENS:
        return TOKENS[name]
    raise AttributeError(f"nki.language.{name} is not simulated")


class TileSize:
    """``nl.tile_size``: constants of the hardware that the kernel is built for."""

    pmax = NUM_PARTITIONS
    psum_fmax = PSUM_BANK_BYTES // 4
    psum_bank_fmax = PSUM_BANK_BYTES // 4
    psum_bank_fmax_bytes = PSUM_BANK_BYTES
    psum_num_banks = PSUM_BANKS
    gemm_stationary_fmax = NUM_PARTITIONS
    gemm_moving_fmax = PSUM_BANK_BYTES // 4
    bn_stats_fmax = 512
    psum_min_align = 4
    sbuf_min_align = 1

    @property
    def sbuf_fmax_bytes(self) -> int:
        """Bytes of one SBUF partition."""
        return machine().generation.sbuf_bytes

    @property
    def total_available_sbuf_size(self) -> int:
        """Bytes of one SBUF partition (the old name)."""
        return self.sbuf_fmax_bytes

    @property
    def sbuf_fmax(self) -> int:
        """fp32 elements of one SBUF partition."""
        return self.sbuf_fmax_bytes // 4

    @property
    def sbuf_size_bytes(self) -> int:
        """Bytes of SBUF, all partitions together."""
        return self.sbuf_fmax_bytes * NUM_PARTITIONS


tile_size = TileSize()


def is_hbm(buffer: MemoryRegion) -> bool:
    """Return whether a buffer is in HBM."""
    return buffer not in ON_CHIP


def is_on_chip(buffer: MemoryRegion) -> bool:
    """Return whether a buffer is SBUF or PSUM."""
    return buffer in ON_CHIP


def is_psum(buffer: MemoryRegion) -> bool:
    """Return whether a buffer is PSUM."""
    return buffer is psum


def is_sbuf(buffer: MemoryRegion) -> bool:
    """Return whether a buffer is SBUF."""
    return buffer is sbuf


def ds(start: int, size: int) -> DynamicSlice:
    """Return an index of ``size`` elements from ``start`` on."""
    if not isinstance(start, int) or not isinstance(size, int):
        fail(f"nl.ds takes integers, got {start!r} and {size!r}; use ap with a scalar_offset")
    return DynamicSlice(start, size)


def ndarray(
    shape: tuple[int, ...] | list[int],
    dtype: DType,
    buffer: MemoryRegion = sbuf,
    name: str = "",
    address: tuple[int, int] | None = None,
) -> NkiTensor:
    """Allocate a tensor; it holds nothing until an instruction writes it."""
    core = machine()
    if not isinstance(buffer, MemoryRegion):
        fail(f"buffer must be nl.sbuf, nl.psum, nl.hbm or nl.shared_hbm, got {buffer!r}")
    size = tuple(shape)
    if address is not None and buffer not in ON_CHIP:
        fail(f"address {address} is for tensors on chip, got buffer {buffer}")
    if buffer is shared_hbm:
        return NkiTensor(size, dtype, _shared(size, dtype, name), buffer, name)
    storage = allocate(size, dtype, buffer, name)
    if buffer in ON_CHIP:
        storage.life.address = address
        check_alone(storage.life, core.generation)
        core.lives.append(storage.life)
    return NkiTensor(size, dtype, storage, buffer, name)


def _shared(shape: tuple[int, ...], dtype: DType, name: str) -> Storage:
    """Return what all programs of the grid share: their n-th allocations are one tensor."""
    core = machine()
    if core.num_shared == len(core.shared):
        core.shared.append(allocate(shape, dtype, shared_hbm, name))
    core.num_shared += 1
    return core.shared[core.num_shared - 1]


def zeros(
    shape: tuple[int, ...] | list[int],
    dtype: DType,
    buffer: MemoryRegion = sbuf,
    name: str = "",
) -> NkiTensor:
    """Allocate a tensor on chip and set it to 0."""
    result = ndarray(shape, dtype, buffer, name)
    isa_copy.memset(result, 0)
    return result


def broadcast_to(x: NkiTensor, shape: tuple[int, ...], dtype: DType | None = None) -> NkiTensor:
    """Return a new tile that repeats ``x`` along its dimensions of size 1."""
    if len(shape) != x.ndim or any(n not in (1, m) for n, m in zip(x.shape, shape, strict=True)):
        fail(f"{x!r} cannot be broadcast to {shape}")
    view = x
    for dim in range(1, x.ndim):
        if x.shape[dim] != shape[dim]:
            view = view.broadcast(dim, shape[dim])
    result = ndarray(shape, dtype or x.dtype, sbuf)
    if x.shape[0] == shape[0]:
        isa_copy.tensor_copy(result, view)
        return result
    row = ndarray((1, *shape[1:]), result.dtype, sbuf)
    isa_copy.tensor_copy(row, view)
    for first in range(0, shape[0], isa_compound.QUADRANT):
        quadrant = result[first : min(first + isa_compound.QUADRANT, shape[0])]
        isa_compound.nc_stream_shuffle(quadrant, row, [0] * isa_compound.QUADRANT)
    return result


def sum(
    x: NkiTensor, axis: int | tuple[int, ...], dtype: DType | None = None, keepdims: bool = False
) -> NkiTensor:
    """Return a new tile with the sums along the last free dimensions of ``x``."""
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    kept = [1 if i in axes else n for i, n in enumerate(x.shape) if keepdims or i not in axes]
    result = ndarray(tuple(kept) if len(kept) > 1 else (*kept, 1), dtype or x.dtype, sbuf)
    isa_elementwise.tensor_reduce(result, TOKENS["add"], x, axes)
    return result


def load(src: NkiTensor, dtype: DType | None = None) -> NkiTensor:
    """Copy a tensor of HBM into a new tile of SBUF."""
    result = ndarray(src.shape, dtype or src.dtype, sbuf)
    isa_dma.dma_copy(result, src)
    return result


def store(dst: NkiTensor, value: NkiTensor) -> None:
    """Copy a tile of SBUF to HBM."""
    isa_dma.dma_copy(dst, value)


def program_id(axis: int = 0) -> int:
    """Return which program of the launch grid this is."""
    _check_axis(axis)
    return machine().program_id


def num_programs(axes: int = 0) -> int:
    """Return how many programs the launch grid has."""
    _check_axis(axes)
    return machine().num_programs


def program_ndim() -> int:
    """Return the dimensions of the launch grid: 0 without one."""
    return 1 if machine().num_programs > 1 else 0


def _check_axis(axis: int) -> None:
    if axis != 0:
        fail(f"the launch grid has one axis, got {axis!r}")


def affine_range(start: int, stop: int | None = None, step: int = 1) -> range:
    """Return ``range(...)``: a loop that is unrolled."""
    return range(start, stop, step) if stop is not None else range(0, start, step)


sequential_range = affine_range
static_range = affine_range


def dynamic_range(
    start: int | VirtualRegister, stop: int | VirtualRegister | None = None, step: int = 1
) -> Iterator[VirtualRegister]:
    """Iterate on the device; the bounds may be registers, and the counter is one."""
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        fail(f"step must be a positive integer constant, got {step!r}")
    first, last = (0, start) if stop is None else (start, stop)
    return _counters(range(_value(first), _value(last), step))


def _counters(bounds: range) -> Iterator[VirtualRegister]:
    start = machine().clock
    for i in bounds:
        yield VirtualRegister(i, frozen=True)
    _outlive_loop(start)


def _outlive_loop(start: int) -> None:
    """Let what lived before a loop on the device and is used in it live to the loop's end."""
    core = machine()
    for life in core.lives:
        if 0 <= life.first <= start < life.last:
            life.last = core.clock


def fori_loop(
    lower: int | VirtualRegister,
    upper: int | VirtualRegister,
    body_fun: Callable[[VirtualRegister], None],
    step: int = 1,
) -> None:
    """Call ``body_fun`` with a register that counts from ``lower`` to ``upper`` (exclusive)."""
    for counter in dynamic_range(lower, upper, step):
        body_fun(counter)


def while_loop(
    init: VirtualRegister, body_fun: Callable[[VirtualRegister], VirtualRegister]
) -> None:
    """Call ``body_fun`` until the register that it returns is 0; at once if ``init`` is."""
    start = machine().clock
    condition = init
    while condition.value != 0:
        condition = body_fun(VirtualRegister(condition.value))
    _outlive_loop(start)


def _value(bound: int | VirtualRegister) -> int:
    return bound.value if isinstance(bound, VirtualRegister) else bound
