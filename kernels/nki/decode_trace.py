"""Decode attention traced in the simulator: bytes and estimated times of each pathway.

Host code: it makes a step's inputs, runs the kernel on them and sums the trace. What the keys and
values hold does not matter to that, which blocks are live does.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from math import ceil
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from .simulator import Trace, require_simulator, simulate
from .simulator.cost import Cost, Traffic, estimate, traffic

FOLD_BLOCKS = 128
POOL_MULTIPLE = 16
CACHES = ("k_cache", "v_cache")
KERNELS = {"dma_copy": "decode_attention", "dma_transpose": "decode_attention_transposed"}
WINDOWED = {"dma_copy": "decode_attention_windowed"}
PATHWAYS = tuple(KERNELS)
DTYPE: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
FP8: np.dtype[Any] = np.dtype(ml_dtypes.float8_e4m3)


@dataclass(frozen=True, slots=True)
class DecodeStep:
    """A decode step of one NeuronCore: one new token for each of ``batch`` requests.

    ``fill`` is the share of the ``context`` that is in use, of every request alike; the rest of
    the block table is -1. Heads are those of one core. With a ``window``, the table holds its
    blocks alone. The cache is FP8 with ``fp8``, else bf16.
    """

    batch: int
    context: int
    fill: float = 1.0
    block_size: int = 32
    num_heads: int = 4
    num_kv_heads: int = 1
    head_dim: int = 128
    window: int | None = None
    fp8: bool = False

    @property
    def cache_dtype(self) -> np.dtype[Any]:
        """Dtype of the keys and values."""
        return FP8 if self.fp8 else DTYPE

    @property
    def live_tokens(self) -> int:
        """Tokens of a request, the new one among them."""
        return max(1, round(self.fill * self.context))

    @property
    def first_block(self) -> int:
        """Blocks of a request before the window of its new token."""
        start = 0 if self.window is None else max(0, self.live_tokens - self.window)
        return start // self.block_size

    @property
    def live_blocks(self) -> int:
        """Blocks of a request that its new token sees."""
        return ceil(self.live_tokens / self.block_size) - self.first_block

    @property
    def table_width(self) -> int:
        """Columns of the block table: whole folds of what a token may see."""
        blocks: int = ceil(self.context / self.block_size)
        if self.window is not None:
            blocks = min(blocks, (self.window + self.block_size - 2) // self.block_size + 1)
        return -(-blocks // FOLD_BLOCKS) * FOLD_BLOCKS

    @property
    def needed_bytes(self) -> int:
        """Bytes of the keys and values in the live blocks of all requests."""
        row_bytes: int = 2 * self.num_kv_heads * self.head_dim * self.cache_dtype.itemsize
        return self.batch * self.live_blocks * self.block_size * row_bytes


@dataclass(frozen=True, slots=True)
class PathwayCost:
    """What one pathway moved of the cache and besides, and the engines' times."""

    cache: Traffic
    other_bytes: int
    cost: Cost


def decode_cost(step: DecodeStep, pathway: str, target: str) -> PathwayCost:
    """Run a decode step in the simulator and sum its trace.

    Raises SimulationError where the target or the shapes do not allow the pathway, and ValueError
    where it has no windows.
    """
    trace = _decode_trace(step, pathway, target)
    cache = traffic(trace, CACHES)
    return PathwayCost(
        cache, traffic(trace).moved_bytes - cache.moved_bytes, estimate(trace, target)
    )


def block_table(step: DecodeStep) -> NDArray[np.int32]:
    """Return a table in which the blocks of a request lie apart, as in a pool in use."""
    table = np.full((step.batch, step.table_width), -1, np.int32)
    live = 1 + np.arange(step.batch * step.live_blocks, dtype=np.int32)
    table[:, : step.live_blocks] = live.reshape(step.live_blocks, step.batch).T
    return table


def _decode_trace(step: DecodeStep, pathway: str, target: str) -> Trace:
    require_simulator()
    names = KERNELS if step.window is None else WINDOWED
    if pathway not in names:
        raise ValueError(f"pathway {pathway!r} has no windows, expected {', '.join(names)}")
    kernel = getattr(import_module(".decode_attention", __package__), names[pathway])
    trace = Trace()
    cache = np.zeros(_cache_shape(step), step.cache_dtype)
    offsets = np.full((step.batch, 1), step.first_block, np.int32)
    simulate(kernel, target=target, trace=trace)(
        np.zeros((step.batch, step.num_heads, step.head_dim), DTYPE),
        cache,
        np.zeros_like(cache),
        block_table(step),
        np.full((step.batch, 1), step.live_tokens - 1, np.int32),
        np.ones((step.batch, 1), np.int32),
        *(() if step.window is None else (offsets,)),
        step.head_dim**-0.5,
        1,
        *(() if step.window is None else (step.window,)),
    )
    return trace


def _cache_shape(step: DecodeStep) -> tuple[int, int, int, int]:
    """Return the shape of a pool of the live blocks and the null block."""
    num_blocks = ceil((1 + step.batch * step.live_blocks) / POOL_MULTIPLE) * POOL_MULTIPLE
    return (num_blocks, step.block_size, step.num_kv_heads, step.head_dim)
