"""How fast the kernels of a target multiply and read weights at most, in products of their own.

A library's peak may lie far beyond: it may use instructions that these kernels do not.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from ...bucketing.costs.devices import CPU_FEES, DeviceSheet
from ...kernels.kernel_set import KernelSet

PRODUCT_SIZE, PRODUCT_ROWS = 2048, 512
"""Of the product that is bound by operations: outputs and inputs, and rows."""
READ_BYTES = 256 * 2**20
"""Weights of the product of one row, which is bound by reading: beyond most caches."""
READ_INPUTS = 4096
NUM_REPEATS = 8
HOST_S = 2e-4
"""Seconds of the host's work around a step of a few requests: a guess."""


def kernel_sheet(kernels: KernelSet, name: str, dtype: str) -> DeviceSheet:
    """Measure a device that computes in one dtype; takes seconds, the best repeat counts."""
    kind: torch.dtype = getattr(torch, dtype)
    outputs = READ_BYTES // (READ_INPUTS * kind.itemsize)
    product_s = _product_s(kernels, PRODUCT_ROWS, (PRODUCT_SIZE, PRODUCT_SIZE), kind)
    read_s = _product_s(kernels, 1, (outputs, READ_INPUTS), kind)
    return DeviceSheet(
        name=name,
        bytes_s=outputs * READ_INPUTS * kind.itemsize / read_s,
        flop_s={dtype: 2 * PRODUCT_ROWS * PRODUCT_SIZE**2 / product_s},
        launch_s=HOST_S,
        fees=CPU_FEES,
    )


def _product_s(
    kernels: KernelSet, num_rows: int, shape_OI: tuple[int, int], dtype: torch.dtype
) -> float:
    """Return the seconds of ``num_rows`` rows times one weight."""
    outputs, inputs = shape_OI
    linear = kernels.make_linear(torch.ones(shape_OI, dtype=dtype), None, dtype)
    x_RI = kernels.zeros((num_rows, inputs), dtype)
    run = kernels.compile(linear, [x_RI], [kernels.zeros((num_rows, outputs), dtype)])
    return min(_seconds(run) for _ in range(NUM_REPEATS))


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
