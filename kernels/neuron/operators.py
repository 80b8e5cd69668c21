"""The operators of ``noria_neuron``: one NKI kernel each, one node each of a captured graph.

Each is a function whose type hints are its schema, and the names of the arguments it changes.
They are registered once per process, in one of two ways:

- by ``nki_op`` of torch-neuronx (``register(nki_op)``): on a device a node is its kernel;
- as *twins* (``register_twins()``), on any machine: the same names, schemas and shapes of results,
  so that ``torch.export`` captures the same graph. On tensors without memory only shapes are
  computed; on those of this machine a twin runs its kernel in the simulator.

Caches are changed, never returned: a graph that writes and then reads them is ordered by the
changed argument. Integer tensors are int32; lengths, slots and other lists are columns ``[n, 1]``,
as kernels take them. Every tensor is contiguous. Shape letters as in ``kernels/kernel_set.py``.

Annotations must be types here, not text (no ``from __future__ import annotations``): they are
read by ``torch.library.infer_schema``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from .kernel_calls import call_kernel

NAMESPACE = "noria_neuron"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator: its function, and the names of the arguments that it changes."""

    function: Callable[..., Any]
    mutates: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name with the namespace, as torch knows it."""
        return f"{NAMESPACE}::{self.function.__name__}"

    def call(self, *arguments: Any) -> Any:
        """Call what is registered: run it, or be a node of the graph that is captured."""
        return getattr(getattr(torch.ops, NAMESPACE), self.function.__name__)(*arguments)


def kv_write(k_cache: Tensor, v_cache: Tensor, k_new: Tensor, v_new: Tensor, slots: Tensor) -> None:
    """Write new keys and values ``[R, K, D]`` to slots ``[R, 1]``; slot -1 writes nothing."""
    call_kernel("kv_cache_write", k_cache, v_cache, k_new, v_new, slots)


def kv_write_fp8(
    k_cache: Tensor,
    v_cache: Tensor,
    k_new: Tensor,
    v_new: Tensor,
    slots: Tensor,
    k_scale: float,
    v_scale: float,
) -> None:
    """Write ``k_new / k_scale`` and ``v_new / v_scale``, rounded to FP8, as ``kv_write`` does."""
    tensors = (k_cache, v_cache, k_new, v_new, slots)
    call_kernel("kv_cache_write_fp8", *tensors, k_scale, v_scale)


def copy_blocks(k_cache: Tensor, v_cache: Tensor, sources: Tensor, destinations: Tensor) -> None:
    """Copy blocks ``[M, 1]`` of both caches to others; both are -1 where nothing is copied."""
    call_kernel("cache_block_copy", k_cache, v_cache, sources, destinations)


def attend_prefill(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    tile_request: Tensor,
    query_start_loc: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
    softcap: float,
    v_scale: float,
) -> Tensor:
    """Attend causally from packed requests to what the cache holds of them: ``[T, H*D]``.

    ``softcap`` 0 is none; ``scale`` includes that of the keys of an FP8 cache.
    """
    tensors = (q, k_cache, v_cache, block_table, tile_request, query_start_loc)
    numbers = (scale, softcap, v_scale)
    out: Tensor = call_kernel("prefill_attention", *tensors, context_lens, query_lens, *numbers)
    return out


def attend_prefill_windowed(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    tile_request: Tensor,
    query_start_loc: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    block_offset: Tensor,
    scale: float,
    window: int,
    softcap: float,
    v_scale: float,
) -> Tensor:
    """Attend as ``attend_prefill``, to the last ``window`` tokens of each query alone.

    ``block_offset [P, 1]`` counts the blocks before the table.
    """
    tensors = (q, k_cache, v_cache, block_table, tile_request, query_start_loc)
    lens = (context_lens, query_lens, block_offset)
    numbers = (scale, window, softcap, v_scale)
    out: Tensor = call_kernel("prefill_attention_windowed", *tensors, *lens, *numbers)
    return out


def attend_decode(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    scale: float,
    query_len: int,
    softcap: float,
    v_scale: float,
) -> Tensor:
    """Attend from ``query_len`` rows per request to what the cache holds of it: ``[R, H*D]``."""
    tensors = (q, k_cache, v_cache, block_table, context_lens, query_lens)
    out: Tensor = call_kernel("decode_attention", *tensors, scale, query_len, softcap, v_scale)
    return out


def attend_decode_windowed(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    query_lens: Tensor,
    block_offset: Tensor,
    scale: float,
    query_len: int,
    window: int,
    softcap: float,
    v_scale: float,
) -> Tensor:
    """Attend as ``attend_decode``, to the last ``window`` tokens of each query alone."""
    tensors = (q, k_cache, v_cache, block_table, context_lens, query_lens, block_offset)
    numbers = (scale, query_len, window, softcap, v_scale)
    out: Tensor = call_kernel("decode_attention_windowed", *tensors, *numbers)
    return out


CACHES = ("k_cache", "v_cache")
KV_WRITE = Operator(kv_write, CACHES)
KV_WRITE_FP8 = Operator(kv_write_fp8, CACHES)
COPY_BLOCKS = Operator(copy_blocks, CACHES)
ATTEND_PREFILL = Operator(attend_prefill)
ATTEND_PREFILL_WINDOWED = Operator(attend_prefill_windowed)
ATTEND_DECODE = Operator(attend_decode)
ATTEND_DECODE_WINDOWED = Operator(attend_decode_windowed)

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        one.name: one
        for one in (
            *(KV_WRITE, KV_WRITE_FP8, COPY_BLOCKS),
            *(ATTEND_PREFILL, ATTEND_PREFILL_WINDOWED),
            *(ATTEND_DECODE, ATTEND_DECODE_WINDOWED),
        )
    }
)
"""All operators, by their full names."""


@cache
def register(nki_op: Callable[..., Callable[[Callable[..., Any]], Any]]) -> None:
    """Register every operator by ``torch_neuronx.nki_op``; doing it again changes nothing.

    Raises:
        RuntimeError: the process has them already, as twins.
    """
    for name, operator in OPERATORS.items():
        nki_op(name, mutates_args=set(operator.mutates))(operator.function)


@cache
def register_twins() -> None:
    """Register every operator as a twin; doing it again changes nothing."""
    for name, operator in OPERATORS.items():
        twin = torch.library.custom_op(name, operator.function, mutates_args=operator.mutates)
        twin.register_fake(_no_result if operator.mutates else _attended)


def _no_result(*arguments: Any) -> None:
    """Return what operators do that change caches."""


def _attended(q_RHD: Tensor, *arguments: Any) -> Tensor:
    num_rows, num_heads, head_dim = q_RHD.shape
    return q_RHD.new_empty((num_rows, num_heads * head_dim))
