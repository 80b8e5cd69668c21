"""The KernelSet `neuron-sim`: attention by the NKI kernels in the simulator, the rest in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..contract import AttentionSpec, check_slots, check_tensor
from ..reference import ReferenceKernels
from .simulator import require_simulator, simulate

TILE = 128
"""Rows of a prefill tile, and blocks of a gather: one per partition."""

Kernel = Callable[..., Any]
Array = npt.NDArray[Any]


class NkiSimKernels(ReferenceKernels):
    """The kernels of a Trainium device, run instruction by instruction on the CPU.

    For tests and tiny models in fp32 and bf16: a simulated step takes seconds.
    """

    name = "neuron-sim"

    def __init__(self, target: str = "trn2") -> None:
        """Simulate this generation; the kernels are imported here, after the simulator.

        Raises:
            RealNkiError: the real NKI is installed.
        """
        super().__init__(prefill_tile=TILE, fold_blocks=TILE)
        require_simulator()
        from .decode_attention import decode_attention
        from .kv_write import kv_cache_write
        from .prefill_attention import prefill_attention

        self._write: Kernel = simulate(kv_cache_write, target=target)
        self._prefill: Kernel = simulate(prefill_attention, target=target)
        self._decode: Kernel = simulate(decode_attention, target=target)

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
        caches = _array(k_cache_NBKD), _array(v_cache_NBKD)
        self._write_new(caches, k_TKD, v_TKD, slot_mapping_T)
        out = self._prefill(
            _array(q_THD),
            *caches,
            _array(block_table_PW),
            _column(tile_request),
            _column(query_start_loc),
            _column(context_lens_P),
            _column(query_lens_P),
            spec.scale,
        )
        return _tensor(out, q_THD)

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
        caches = _array(k_cache_NBKD), _array(v_cache_NBKD)
        self._write_new(caches, k_RKD, v_RKD, slot_mapping_R)
        query_len = q_RHD.shape[0] // block_table_SW.shape[0]
        out = self._decode(
            _array(q_RHD),
            *caches,
            _array(block_table_SW),
            _column(context_lens_S),
            _column(query_lens_S),
            spec.scale,
            query_len,
        )
        return _tensor(out, q_RHD)

    def _write_new(
        self, caches: tuple[Array, Array], k_TKD: Tensor, v_TKD: Tensor, slots_T: Tensor
    ) -> None:
        check_tensor("slot_mapping", slots_T, (k_TKD.shape[0],), torch.int32)
        num_blocks, block_size = caches[0].shape[:2]
        check_slots(slots_T, num_blocks * block_size)  # the DMA would skip without a word
        self._write(*caches, _array(k_TKD), _array(v_TKD), _column(slots_T))


def _array(tensor: Tensor) -> Array:
    """Return a numpy array over a contiguous tensor's own memory; bf16 keeps its bits."""
    tensor = tensor.contiguous()
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def _column(tensor: Tensor) -> Array:
    return _array(tensor).reshape(-1, 1)


def _tensor(array: Array, like: Tensor) -> Tensor:
    if like.dtype == torch.bfloat16:
        return torch.from_numpy(np.ascontiguousarray(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(array))
