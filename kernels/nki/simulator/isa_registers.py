"""Virtual registers: allocation, moves, loads and stores."""

from __future__ import annotations

import numpy as np

from .access import NkiInstruction, read, record, tensor, write
from .dtypes import INTEGERS, numpy_dtype
from .errors import fail
from .isa_dma import DMA_BUFFERS
from .machine import tick
from .registers import VirtualRegister
from .tensor import NkiTensor


def register_alloc(x: int | None = None) -> VirtualRegister:
    """Return a register, holding a constant or nothing yet."""
    if x is not None and (isinstance(x, bool) or not isinstance(x, int)):
        fail(f"a register starts with an integer or None, got {x!r}")
    register = VirtualRegister()
    if x is not None:
        register.assign(x)
    return register


def register_move(dst: VirtualRegister, src: int | VirtualRegister) -> None:
    """Move a constant or another register's value into a register."""
    tick()
    if not isinstance(src, int | VirtualRegister) or isinstance(src, bool):
        fail(f"src must be an integer or a register, got {src!r}")
    _register(dst, "dst").assign(src.value if isinstance(src, VirtualRegister) else src)


def register_load(dst: VirtualRegister, src: NkiTensor) -> NkiInstruction:
    """Load one integer element of SBUF or HBM into a register."""
    core = tick()
    _one_integer(src, "src")
    _register(dst, "dst").assign(int(read(src, "src").reshape(())))
    return record(core, "sync", None, {"src": src})


def register_store(dst: NkiTensor, src: VirtualRegister) -> NkiInstruction:
    """Store a register to one integer element of SBUF or HBM."""
    core = tick()
    _one_integer(dst, "dst")
    value = np.asarray(_register(src, "src").value, np.int64)
    limits = np.iinfo(numpy_dtype(dst.dtype))
    if not limits.min <= value <= limits.max:
        fail(f"{value} does not fit into {dst!r}")
    write(dst, value.astype(numpy_dtype(dst.dtype)))
    return record(core, "sync", None, {"dst": dst})


def _register(value: object, role: str) -> VirtualRegister:
    if not isinstance(value, VirtualRegister):
        fail(f"{role} must be a register, got {value!r}")
    return value


def _one_integer(value: object, role: str) -> None:
    found = tensor(value, role, DMA_BUFFERS)
    if found.size != 1 or found.dtype not in INTEGERS - {"bool"}:
        fail(f"{role} must be one integer element, got {found!r}")
