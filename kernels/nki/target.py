"""The KernelSet `neuron-sim`: attention by the NKI kernels in the simulator, the rest in torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..contract import AttentionSpec, check_cache_scales, check_slots, check_tensor
from ..reference import ReferenceKernels
from ..source_digest import source_digest
from .simulator import require_simulator, simulate
from .simulator.generation import generation_of

TILE = 128
"""Rows of a prefill tile, and blocks of a gather: one per partition."""

FP8_FORMATS: dict[str, Any] = {
    "trn1": ml_dtypes.float8_e4m3,
    "trn2": ml_dtypes.float8_e4m3,
    "trn3": ml_dtypes.float8_e4m3fn,
}
"""How a generation reads the bytes of an FP8 cache; bits up to 240 mean the same in both."""

Kernel = Callable[..., Any]
Array = npt.NDArray[Any]


class NkiSimKernels(ReferenceKernels):
    """The kernels of a Trainium device, run instruction by instruction on the CPU.

    For tests and tiny models in fp32 and bf16: a simulated step takes seconds. An FP8 cache holds
    what the device can: numbers up to 240 on trn2, where other targets go up to 448.
    """

    name = "neuron-sim"
    fixes_num_blocks = True

    def __init__(self, target: str = "trn2") -> None:
        """Simulate this generation; the kernels are imported here, after the simulator.

        Raises:
            RealNkiError: the real NKI is installed.
        """
        super().__init__(prefill_tile=TILE, fold_blocks=TILE)
        require_simulator()
        from .decode_attention import decode_attention, decode_attention_windowed
        from .kv_write import kv_cache_write, kv_cache_write_fp8
        from .prefill_attention import prefill_attention, prefill_attention_windowed

        self._generation = generation_of(target).name
        self._fp8 = FP8_FORMATS[self._generation]
        self._write: Kernel = simulate(kv_cache_write, target=target)
        self._write_fp8: Kernel = simulate(kv_cache_write_fp8, target=target)
        self._prefill: Kernel = simulate(prefill_attention, target=target)
        self._prefill_windowed: Kernel = simulate(prefill_attention_windowed, target=target)
        self._decode: Kernel = simulate(decode_attention, target=target)
        self._decode_windowed: Kernel = simulate(decode_attention_windowed, target=target)

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The simulated generation, and the sources of kernels and simulator."""
        folders = ("*.py", "reference/*.py", "nki/*.py", "nki/simulator/*.py")
        return {"generation": self._generation, "sources": source_digest(*folders)}

    def attend_prefill(
        self,
        q_THD: Tensor,
        k_TKD: Tensor,
        v_TKD: Tensor,
        k_cache_NBKD: Tensor,
        v_cache_NBKD: Tensor,
        *,
        slot_mapping_T: Tensor,
        block_table_PW: Tensor,
        query_start_loc: Tensor,
        tile_request: Tensor,
        context_lens_P: Tensor,
        query_lens_P: Tensor,
        spec: AttentionSpec,
        block_offset: Tensor | None = None,
    ) -> Tensor:
        """Write the new keys and values, then attend causally: ``[T, H*D]``."""
        caches = self._caches(k_cache_NBKD, v_cache_NBKD, spec)
        self._write_new(caches, k_TKD, v_TKD, slot_mapping_T, spec)
        tensors = (
            array_of(q_THD),
            *caches,
            array_of(block_table_PW),
            *map(_column, (tile_request, query_start_loc, context_lens_P, query_lens_P)),
        )
        scale, *options = _numbers(spec)
        sizes = (spec.window, caches[0].shape[1])
        offsets = _offsets(block_offset, context_lens_P, query_lens_P, *sizes)
        if spec.window is None:
            out = self._prefill(*tensors, scale, *options)
        else:
            out = self._prefill_windowed(*tensors, offsets, scale, spec.window, *options)
        return tensor_of(out, q_THD)

    def attend_decode(
        self,
        q_RHD: Tensor,
        k_RKD: Tensor,
        v_RKD: Tensor,
        k_cache_NBKD: Tensor,
        v_cache_NBKD: Tensor,
        *,
        slot_mapping_R: Tensor,
        block_table_SW: Tensor,
        context_lens_S: Tensor,
        query_lens_S: Tensor,
        spec: AttentionSpec,
        block_offset: Tensor | None = None,
    ) -> Tensor:
        """Write, then attend, with R = S*Q rows in request order: ``[R, H*D]``."""
        caches = self._caches(k_cache_NBKD, v_cache_NBKD, spec)
        self._write_new(caches, k_RKD, v_RKD, slot_mapping_R, spec)
        query_len = q_RHD.shape[0] // block_table_SW.shape[0]
        tensors = (
            array_of(q_RHD),
            *caches,
            array_of(block_table_SW),
            *map(_column, (context_lens_S, query_lens_S)),
        )
        scale, *options = _numbers(spec)
        sizes = (spec.window, caches[0].shape[1])
        offsets = _offsets(block_offset, context_lens_S, query_lens_S, *sizes)
        if spec.window is None:
            out = self._decode(*tensors, scale, query_len, *options)
        else:
            out = self._decode_windowed(*tensors, offsets, scale, query_len, spec.window, *options)
        return tensor_of(out, q_RHD)

    def _caches(self, k_cache: Tensor, v_cache: Tensor, spec: AttentionSpec) -> tuple[Array, Array]:
        """Return the caches' own memory; FP8 in the format of the generation."""
        check_cache_scales(spec, k_cache.dtype)
        if k_cache.dtype != torch.float8_e4m3fn:
            return array_of(k_cache), array_of(v_cache)
        k_bytes, v_bytes = (cache.view(torch.uint8).numpy() for cache in (k_cache, v_cache))
        return k_bytes.view(self._fp8), v_bytes.view(self._fp8)

    def _write_new(
        self,
        caches: tuple[Array, Array],
        k_TKD: Tensor,
        v_TKD: Tensor,
        slots_T: Tensor,
        spec: AttentionSpec,
    ) -> None:
        check_tensor("slot_mapping", slots_T, (k_TKD.shape[0],), torch.int32)
        num_blocks, block_size = caches[0].shape[:2]
        check_slots(slots_T, num_blocks * block_size)  # the DMA would skip without a word
        arguments = (*caches, array_of(k_TKD), array_of(v_TKD), _column(slots_T))
        if caches[0].dtype == self._fp8:
            self._write_fp8(*arguments, spec.k_scale, spec.v_scale)
        else:
            self._write(*arguments)


def _numbers(spec: AttentionSpec) -> tuple[float, float, float]:
    """Return scale, soft cap and v_scale as the kernels take them."""
    return spec.scale * spec.k_scale, spec.softcap or 0.0, spec.v_scale


def _offsets(
    block_offset: Tensor | None,
    context_lens: Tensor,
    query_lens: Tensor,
    window: int | None,
    block_size: int,
) -> Array:
    """Return the blocks before each request's table, ``[n, 1]``.

    Raises ValueError if a row sees tokens in them: the kernels would take other keys for these.
    """
    if block_offset is None:
        return np.zeros((context_lens.shape[0], 1), np.int32)
    check_tensor("block_offset", block_offset, tuple(context_lens.shape), torch.int32)
    first = torch.zeros_like(context_lens)
    if window is not None:
        first = (context_lens + 1 - window).clamp(min=0)
    missing = torch.where(query_lens > 0, block_offset * block_size - first, 0)
    if (missing > 0).any():
        raise ValueError(f"a row sees {int(missing.max())} tokens that lie before its block table")
    return _column(block_offset)


def array_of(tensor: Tensor) -> Array:
    """Return a numpy array over a contiguous tensor's own memory; bf16 keeps its bits."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _column(tensor: Tensor) -> Array:
    return array_of(tensor).reshape(-1, 1)


def tensor_of(array: Array, like: Tensor) -> Tensor:
    """Return what a kernel returned as a tensor of the dtype of ``like``."""
    if like.dtype == torch.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
