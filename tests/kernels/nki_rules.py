"""Runs small kernels in the simulator, and expects it to refuse others at a line of the test."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from noria.kernels.nki.simulator import SimulationError, Trace, install, simulate
from noria.kernels.nki.simulator import isa as nisa
from noria.kernels.nki.simulator import language as nl

install()

__all__ = ["copied_out", "draw", "filled", "loaded", "nisa", "nl", "refused", "run", "tile"]

Kernel = Callable[..., Any]


def run(kernel: Kernel, *arrays: Any, target: str = "trn2", trace: Trace | None = None) -> Any:
    return simulate(kernel, target=target, trace=trace)(*arrays)


def refused(
    instruction: str, problem: str, kernel: Kernel, *arrays: Any, target: str = "trn2"
) -> None:
    """Expect an error that names the instruction, the problem, and a line outside the simulator."""
    with pytest.raises(SimulationError, match=problem) as caught:
        run(kernel, *arrays, target=target)
    file, _, line = caught.value.where.rpartition(":")
    assert caught.value.instruction == instruction
    assert file in (kernel.__code__.co_filename, __file__)
    assert int(line) > 0


def draw(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def tile(*shape: int, dtype: str = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """Return a tile that holds nothing."""
    return nl.ndarray(shape, dtype=dtype, buffer=buffer)


def filled(*shape: int, value: Any = 0, dtype: str = nl.float32, buffer: Any = nl.sbuf) -> Any:
    """Return a tile that holds a constant."""
    found = tile(*shape, dtype=dtype, buffer=buffer)
    nisa.memset(dst=found, value=value)
    return found


def loaded(source: Any) -> Any:
    """Return a tile that holds a tensor of HBM."""
    found = tile(*source.shape, dtype=source.dtype)
    nisa.dma_copy(dst=found, src=source)
    return found


def copied_out(source: Any) -> Any:
    """Return an output that holds a tile of SBUF or PSUM."""
    if source.buffer is nl.psum:
        moved = tile(*source.shape, dtype=source.dtype)
        nisa.tensor_copy(dst=moved, src=source)
        source = moved
    result = nl.ndarray(source.shape, dtype=source.dtype, buffer=nl.shared_hbm)
    nisa.dma_copy(dst=result, src=source)
    return result
