"""Limits of kernels: units, and which product gives which."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from torch import Tensor, nn

from noria.kernels.reference import ReferenceKernels
from noria.runtime.bench import kernel_limits
from noria.runtime.bench.kernel_limits import kernel_sheet


class Timed(ReferenceKernels):
    """Multiplies in 2 s where there are many rows, in 0.5 s where there is one."""

    def __init__(self, clock: list[float]) -> None:
        super().__init__()
        self.clock = clock
        self.products: list[tuple[int, ...]] = []

    def compile(
        self, graph: nn.Module, inputs: Sequence[Any], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        run = super().compile(graph, inputs, outputs)
        (rows, num_in), num_out = inputs[0].shape, outputs[0].shape[1]

        def timed() -> None:
            run()
            self.products.append((rows, num_in, num_out))
            self.clock[0] += 2.0 if rows > 1 else 0.5

        return timed


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_rates_are_those_of_one_product_and_of_one_read(
    dtype: str, itemsize: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(kernel_limits.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(kernel_limits, "READ_BYTES", 2**18)
    monkeypatch.setattr(kernel_limits, "PRODUCT_SIZE", 16)
    kernels = Timed(clock)

    sheet = kernel_sheet(kernels, "a processor", dtype)

    assert set(kernels.products) == {(512, 16, 16), (1, 4096, 2**18 // 4096 // itemsize)}
    assert sheet.flop_s == {dtype: 2 * 512 * 16 * 16 / 2.0}
    assert sheet.bytes_s == 2**18 / 0.5
    assert (sheet.name, sheet.bytes_share, sheet.flop_share) == ("a processor", 1, 1)
