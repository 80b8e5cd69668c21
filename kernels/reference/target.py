"""The KernelSet `reference`: plain torch functions under one name, run uncompiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from ..contract import AttentionSpec, check_tensor
from ..source_digest import source_digest
from . import attention, blocks, cache, experts, layers, sampler


class ReferenceKernels:
    """Operators in plain torch on the CPU, for fp64, fp32 and bf16 alike.

    Attention, norms, rope, activations, experts and the sampler treat every row alone, to the bit:
    its result does not depend on the number of rows, its place among them or the table width.
    Linear layers promise less (see ``layers.Linear``).
    """

    name = "reference"
    head_dim_multiple = 2
    fixes_num_blocks = False
    makes_traces = False
    embed = staticmethod(layers.embed)
    rms_norm = staticmethod(layers.rms_norm)
    add_rms_norm = staticmethod(layers.add_rms_norm)
    rope = staticmethod(layers.rope)
    silu_mul = staticmethod(layers.silu_mul)
    gelu_mul = staticmethod(layers.gelu_mul)
    soft_cap = staticmethod(layers.soft_cap)
    route = staticmethod(experts.route)
    copy_blocks = staticmethod(blocks.copy_blocks)
    take_rows = staticmethod(layers.take_rows)
    attend_decode = staticmethod(attention.attend_decode)
    greedy = staticmethod(sampler.greedy)
    sample = staticmethod(sampler.sample)
    penalize = staticmethod(sampler.penalize)
    add_bias = staticmethod(sampler.add_bias)
    mask_logits = staticmethod(sampler.mask_logits)
    top_logprobs = staticmethod(sampler.top_logprobs)

    def __init__(self, *, prefill_tile: int = 1, fold_blocks: int = 1) -> None:
        """Take the alignment of packed requests and of block tables from another target.

        Nothing here needs either: other values than 1 reproduce the gaps of that target.
        """
        self.prefill_tile = prefill_tile
        self.fold_blocks = fold_blocks

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The sources: nothing is compiled, and torch itself is the caller's to name."""
        return {"sources": source_digest("*.py", "reference/*.py")}

    @property
    def library(self) -> None:
        """None: these kernels are torch's."""

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros."""
        return torch.zeros(tuple(shape), dtype=dtype)

    def settle(self) -> None:
        """Do nothing: pages come with the first write to them."""

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Keep the weight for ``[R, I] -> [R, O]``, the result in ``out_dtype``."""
        return layers.Linear(weight_OI, bias_O, out_dtype)

    def make_experts(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> nn.Module:
        """Keep the weights of X expert MLPs."""
        return experts.Experts(gate_up_X2FE, down_XEF, activation, experts.RowLinear)

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
        """Write the new keys and values, then attend causally: ``[T, H*D]``.

        Raises:
            ValueError: an input has the wrong shape or dtype, a slot or a length does not fit.
        """
        rows = attention.prefill_rows(
            q_THD.shape[0],
            self.prefill_tile,
            query_start_loc=query_start_loc,
            tile_request=tile_request,
            context_lens_P=context_lens_P,
            query_lens_P=query_lens_P,
        )
        cache.write(k_TKD, v_TKD, k_cache_NBKD, v_cache_NBKD, slot_mapping_T, spec=spec)
        return attention.attend(
            q_THD,
            k_cache_NBKD,
            v_cache_NBKD,
            block_table_PW,
            rows,
            spec=spec,
            block_offset=block_offset,
        )

    def for_tracing(self) -> ReferenceKernels:
        """Return these kernels: a trace of theirs is empty."""
        return self

    def trace(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor] = ()
    ) -> bytes:
        """Return nothing: graphs run uncompiled."""
        return b""

    def load(
        self,
        traced: bytes,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
    ) -> Callable[[], None]:
        """Bind the graph to its buffers, as ``compile`` does.

        Raises:
            ValueError: ``traced`` comes from another target.
        """
        if traced:
            raise ValueError(f"{len(traced)} bytes of a trace, where graphs run uncompiled")
        return self.compile(graph, inputs, outputs)

    def compile(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Bind the graph to its buffers; nothing is compiled.

        Raises:
            ValueError: when run, if the graph's results do not fit ``outputs`` exactly.
        """

        def run() -> None:
            with torch.no_grad():
                results = _results(graph(*inputs))
                if len(results) != len(outputs):
                    raise ValueError(f"the graph returns {len(results)} values, not {len(outputs)}")
                for result, output in zip(results, outputs, strict=True):
                    check_tensor("graph output", result, tuple(output.shape), output.dtype)
                # An output may be an input, of which another result is a view.
                for result, output in zip([r.clone() for r in results], outputs, strict=True):
                    output.copy_(result)

        return run


def _results(returned: Tensor | Sequence[Tensor] | None) -> Sequence[Tensor]:
    if returned is None:
        return ()
    return (returned,) if isinstance(returned, Tensor) else returned
