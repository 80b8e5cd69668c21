"""Calls of the NKI kernels with torch tensors: on the device, or in the simulator.

Which of the two is decided by what ``import nki`` finds in this process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

TARGET_VARIABLE = "NEURON_PLATFORM_TARGET_OVERRIDE"
DEFAULT_TARGET = "trn2"

Kernel = Callable[..., Any]


def call_kernel(name: str, *arguments: Any) -> Any:
    """Run the kernel of this name and return what it returns; tensors it writes are changed.

    With the vendor's nki this is the plain call, which torch-neuronx takes over. Without it the
    tensors are in this machine's memory, contiguous, and the simulator runs the kernel on them.
    """
    if not _is_simulated():
        return kernels()[name](*arguments)
    return _simulate(kernels()[name], arguments)


@cache
def kernels() -> Mapping[str, Kernel]:
    """Return the kernels that operators call, by name; imported here, after nki was found.

    Raises:
        ImportError: the simulator lacks a package.
    """
    from ..nki.simulator import install

    install()
    from ..nki.block_copy import cache_block_copy
    from ..nki.decode_attention import decode_attention, decode_attention_windowed
    from ..nki.kv_write import kv_cache_write, kv_cache_write_fp8
    from ..nki.prefill_attention import prefill_attention, prefill_attention_windowed

    found = {
        "cache_block_copy": cache_block_copy,
        "decode_attention": decode_attention,
        "decode_attention_windowed": decode_attention_windowed,
        "kv_cache_write": kv_cache_write,
        "kv_cache_write_fp8": kv_cache_write_fp8,
        "prefill_attention": prefill_attention,
        "prefill_attention_windowed": prefill_attention_windowed,
    }
    return MappingProxyType(found)


def _is_simulated() -> bool:
    from ..nki.simulator.simulate import Kernel as SimulatedKernel

    return isinstance(kernels()["kv_cache_write"], SimulatedKernel)


def _simulate(kernel: Kernel, arguments: tuple[Any, ...]) -> Any:
    from ..nki.simulator import simulate
    from ..nki.target import tensor_of

    target = os.environ.get(TARGET_VARIABLE, DEFAULT_TARGET)
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    arrays = [_array(one, target) if isinstance(one, Tensor) else one for one in arguments]
    result = simulate(kernel, target=target)(*arrays)
    if isinstance(result, tuple):  # the caches, changed in place
        return tensors[:2]
    return tensor_of(result, like=tensors[0])


def _array(tensor: Tensor, target: str) -> Any:
    """Return an array over the tensor's own memory; FP8 in the format of the generation."""
    from ..nki.target import FP8_FORMATS, array_of

    if not tensor.is_contiguous():
        raise ValueError(f"a kernel's tensor has strides {tensor.stride()}, expected dense rows")
    if tensor.dtype == torch.float8_e4m3fn:
        from ..nki.simulator.generation import generation_of

        return tensor.view(torch.uint8).numpy().view(FP8_FORMATS[generation_of(target).name])
    return array_of(tensor)
