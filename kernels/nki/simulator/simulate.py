"""Running a kernel: arguments in, results out, and the checks at its end."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import numpy as np

from .access import window
from .capacity import check_capacity
from .dtypes import Array, nki_dtype, numpy_dtype
from .enums import MemoryRegion
from .errors import SimulationError
from .generation import generation_of
from .machine import CURRENT, Machine
from .memory import Storage, wrap_input
from .tensor import NkiTensor
from .trace import Trace

Function = Callable[..., Any]
DEFAULT_TARGET = "trn3"  # of nki.simulate, as documented
TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"


@dataclass(frozen=True, slots=True)
class Kernel:
    """What ``nki.jit`` returns: a function that runs in a simulation only."""

    function: Function
    grid: int = 1

    def __getitem__(self, grid: int) -> Kernel:
        """Choose how many programs run the kernel (logical NeuronCores)."""
        return Kernel(self.function, grid)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel from within another one.

        Raises:
            SimulationError: no simulation is running.
        """
        if CURRENT.get(None) is None:
            raise self.error("a kernel runs by nki.simulate(kernel)(...), there is no device")
        return self.function(*args, **kwargs)

    def error(self, problem: str) -> SimulationError:
        """Return an error at the kernel's definition."""
        code = inspect.unwrap(self.function).__code__
        where = f"{code.co_filename}:{code.co_firstlineno}"
        return SimulationError(where, self.function.__name__, problem)


def jit(
    fn: Function | None = None,
    *,
    compile_config: Any = None,
    specialization_config: Any = None,
    **kwargs: Any,
) -> Any:
    """Mark a function as a kernel; usable with and without arguments."""
    if fn is None:
        return Kernel
    return Kernel(fn)


def simulate(
    kernel: Kernel | Function, *, target: str = "trn2", trace: Trace | None = None
) -> Function:
    """Return a callable that runs a kernel on numpy arrays.

    Arrays of the caller are the kernel's tensors in HBM: what the kernel writes to them, it writes
    in place. Results are numpy arrays; a written argument must be among them, because that is what
    makes it an output on the device.

    Args:
        kernel: a function, marked by ``nki.jit`` or not.
        target: "trn1", "inf2", "trn2" or "trn3" (or "gen2" to "gen4").
        trace: receives a record of every instruction.

    Raises:
        ValueError: the target is unknown.
        SimulationError: from the callable, when the kernel breaks a rule.
    """
    return _simulation(kernel, Machine(generation_of(target), trace))


def vendor_simulate(kernel: Kernel | Function) -> Function:
    """Return the callable of ``nki.simulate``: the target is in the environment.

    As in the vendor's, unwritten HBM may be read and returned: it holds NaN, and 4 in integers.
    """
    target = os.environ.get(TARGET_VARIABLE, DEFAULT_TARGET)
    return _simulation(kernel, Machine(generation_of(target), strict_hbm=False))


def _simulation(kernel: Kernel | Function, core: Machine) -> Function:
    marked = kernel if isinstance(kernel, Kernel) else Kernel(kernel)

    def run(*args: Any, **kwargs: Any) -> Any:
        return _run(marked, core, args, kwargs)

    return run


def _run(kernel: Kernel, template: Machine, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    bound = inspect.signature(kernel.function).bind(*args, **kwargs)
    for name, value in bound.arguments.items():
        bound.arguments[name] = _argument(kernel, value, name)
    inputs = {each.name: each.storage for each in _tensors(list(bound.arguments.values()))}
    shared: list[Storage] = []
    results = []
    for program in range(kernel.grid):
        core = Machine(
            template.generation,
            template.trace,
            template.strict_hbm,
            program_id=program,
            num_programs=kernel.grid,
            shared=shared,
        )
        context = copy_context()
        context.run(CURRENT.set, core)
        results.append(context.run(kernel.function, *bound.args, **bound.kwargs))
        check_capacity(core.lives, core.generation)
    returned = _tensors(results[0])
    for name, storage in inputs.items():
        if storage.mutated and all(tensor.storage is not storage for tensor in returned):
            raise kernel.error(f"argument {name} is written but not returned")
    return _unwrapped(kernel, results[0], template.strict_hbm)


def _argument(kernel: Kernel, value: Any, name: str) -> Any:
    """Return an argument as the kernel sees it: arrays, those in tuples too, are tensors."""
    if isinstance(value, tuple):
        return tuple(_argument(kernel, part, f"{name}[{i}]") for i, part in enumerate(value))
    if isinstance(value, np.ndarray):
        return _wrapped(kernel, value, name)
    return value


def _wrapped(kernel: Kernel, array: Array, name: str) -> NkiTensor:
    if array.size == 0 or array.ndim == 0:
        raise kernel.error(f"argument {name} has shape {array.shape}; tensors have elements")
    if not array.flags.c_contiguous:
        raise kernel.error(f"argument {name} is not C-contiguous (strides {array.strides})")
    buffer = MemoryRegion.shared_hbm if kernel.grid > 1 else MemoryRegion.private_hbm
    try:
        dtype = nki_dtype(array.dtype)
    except SimulationError as error:
        raise kernel.error(f"argument {name}: {error.problem}") from None
    return NkiTensor(array.shape, dtype, wrap_input(array, name, buffer), buffer, name)


def _tensors(result: Any) -> list[NkiTensor]:
    if isinstance(result, NkiTensor):
        return [result]
    if isinstance(result, list | tuple):
        return [tensor for part in result for tensor in _tensors(part)]
    return []


def _unwrapped(kernel: Kernel, result: Any, strict_hbm: bool) -> Any:
    """Return results as numpy arrays, in the structure that the kernel returned."""
    if isinstance(result, list | tuple):
        return type(result)(_unwrapped(kernel, part, strict_hbm) for part in result)
    if not isinstance(result, NkiTensor):
        return result
    storage = result.storage
    if not storage.is_input and result.buffer is not MemoryRegion.shared_hbm:
        raise kernel.error(f"returns {result!r}; outputs must be in shared_hbm")
    if result.is_indirect():
        raise kernel.error(f"returns the indirect view {result!r}")
    if strict_hbm and not storage.complete:
        missing = int((window(result, storage.written) == 0).sum())
        if missing:
            raise kernel.error(f"returns {result!r}, {missing} of whose elements were not written")
    dense = storage.data.view(numpy_dtype(result.dtype))
    if dense.size == result.size and result.offset == 0 and result.is_contiguous():
        return dense.reshape(result.shape)
    return window(result)
