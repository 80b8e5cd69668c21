"""The KernelSet `neuron`: attention by NKI kernels as operators, the rest in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ..contract import AttentionSpec, check_cache_scales, check_tensor
from ..reference import ReferenceKernels
from ..source_digest import source_digest
from . import experts, layers, operators, sampler

TILE = 128
"""Rows of a prefill tile, and blocks of a gather: one per partition."""
FP8 = torch.float8_e4m3fn


class NeuronKernels(ReferenceKernels):
    """The kernels of a Trainium device.

    ``NeuronKernels(target)`` holds shapes only: its tensors are on the device meta, its operators
    are twins (see ``operators``) and it imports nothing of the vendor's, so that any machine can
    capture the graphs that a device would run::

        kernels = NeuronKernels("trn2")
        model = build_model(config, architecture, kernels, tensors_without_memory(...), scales)
        ...assemble(config, model, kernels, size, source, plan=plan)
        program = torch.export.export(graph.module, tuple(graph.inputs), strict=False)

    A captured graph has one node per operator of ``noria_neuron`` (``operators.OPERATORS`` says
    which arguments each changes): ``kv_write`` or ``kv_write_fp8``, then ``attend_*`` per layer.
    No shape or value of Python in it depends on what a tensor holds.
    """

    name = "neuron"
    fixes_num_blocks = True
    rope = staticmethod(layers.rope)
    route = staticmethod(experts.route)
    greedy = staticmethod(sampler.greedy)
    sample = staticmethod(sampler.sample)
    penalize = staticmethod(sampler.penalize)
    add_bias = staticmethod(sampler.add_bias)
    mask_logits = staticmethod(sampler.mask_logits)
    top_logprobs = staticmethod(sampler.top_logprobs)

    def __init__(
        self, target: str = "trn2", *, device: str = "meta", has_twins: bool = True
    ) -> None:
        """Make kernels that capture graphs for this generation.

        Args:
            target: the generation.
            device: of their tensors. On "cpu" operators run in the simulator, uncompiled.
            has_twins: whether operators are twins; else the vendor has registered them.
        """
        super().__init__(prefill_tile=TILE, fold_blocks=TILE)
        if has_twins:
            operators.register_twins()
        self._target = target
        self._device = torch.device(device)

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The generation, and the sources of operators and kernels."""
        folders = ("*.py", "reference/*.py", "nki/*.py", "neuron/*.py")
        return {"generation": self._target, "sources": source_digest(*folders)}

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros on the device; they are shapes where graphs are only captured."""
        return torch.zeros(tuple(shape), dtype=dtype, device=self._device)

    def make_experts(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> nn.Module:
        """Keep the weights of X expert MLPs, all of which run on all rows."""
        return experts.Experts(gate_up_X2FE, down_XEF, activation, self.make_linear)

    def copy_blocks(
        self, k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor
    ) -> None:
        """Copy block ``src[i]`` of both caches to ``dst[i]``; src -1 skips."""
        check_tensor("dst", dst_M, tuple(src_M.shape), src_M.dtype)
        if not src_M.shape[0]:
            return
        dst_M = torch.where(src_M < 0, src_M, dst_M)
        operators.COPY_BLOCKS.call(k_cache_NBKD, v_cache_NBKD, _column(src_M), _column(dst_M))

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
        caches = (k_cache_NBKD, v_cache_NBKD)
        _write(caches, k_TKD, v_TKD, slot_mapping_T, spec)
        lens = (tile_request, query_start_loc, context_lens_P, query_lens_P)
        tensors = (q_THD.contiguous(), *caches, block_table_PW, *map(_column, lens))
        scale, *options = _numbers(spec)
        result: Tensor
        if spec.window is None:
            result = operators.ATTEND_PREFILL.call(*tensors, scale, *options)
            return result
        offsets = _offsets(block_offset, context_lens_P)
        windowed = operators.ATTEND_PREFILL_WINDOWED
        result = windowed.call(*tensors, offsets, scale, spec.window, *options)
        return result

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
        caches = (k_cache_NBKD, v_cache_NBKD)
        _write(caches, k_RKD, v_RKD, slot_mapping_R, spec)
        query_len = q_RHD.shape[0] // block_table_SW.shape[0]
        lens = (context_lens_S, query_lens_S)
        tensors = (q_RHD.contiguous(), *caches, block_table_SW, *map(_column, lens))
        scale, *options = _numbers(spec)
        result: Tensor
        if spec.window is None:
            result = operators.ATTEND_DECODE.call(*tensors, scale, query_len, *options)
            return result
        offsets = _offsets(block_offset, context_lens_S)
        windowed = operators.ATTEND_DECODE_WINDOWED
        result = windowed.call(*tensors, offsets, scale, query_len, spec.window, *options)
        return result

    def for_tracing(self) -> NeuronKernels:
        """Return kernels whose tensors are shapes, as those of ``NeuronKernels(target)``."""
        return NeuronKernels(self._target)


def _write(
    caches: tuple[Tensor, Tensor],
    k_RKD: Tensor,
    v_RKD: Tensor,
    slots_R: Tensor,
    spec: AttentionSpec,
) -> None:
    check_tensor("slot_mapping", slots_R, (k_RKD.shape[0],), torch.int32)
    check_cache_scales(spec, caches[0].dtype)
    arguments = (*caches, k_RKD.contiguous(), v_RKD.contiguous(), _column(slots_R))
    if caches[0].dtype == FP8:
        operators.KV_WRITE_FP8.call(*arguments, spec.k_scale, spec.v_scale)
    else:
        operators.KV_WRITE.call(*arguments)


def _numbers(spec: AttentionSpec) -> tuple[float, float, float]:
    """Return scale, soft cap and v_scale as the kernels take them."""
    return spec.scale * spec.k_scale, spec.softcap or 0.0, spec.v_scale


def _offsets(block_offset: Tensor | None, context_lens: Tensor) -> Tensor:
    """Return the blocks before each request's table, ``[n, 1]``."""
    if block_offset is None:
        return _column(torch.zeros_like(context_lens))
    return _column(block_offset)


def _column(tensor: Tensor) -> Tensor:
    return tensor.reshape(-1, 1)
