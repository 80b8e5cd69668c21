"""The set of operators that a target provides and that models are built from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from .contract import AttentionSpec
from .sampler_operators import SamplerOperators


class KernelSet(SamplerOperators, Protocol):
    """Operators of one target, those of the sampler included.

    Shape letters: T tokens of a prefill bucket, S requests of a decode bucket, Q query tokens per
    request, R rows (T or S*Q), P requests of a prefill step, W block table columns, N blocks,
    B block size, H query heads, K key/value heads, D head dim, Y rotated dims of a head,
    E hidden size, F intermediate size, X experts, A experts of a row, V vocabulary, O outputs,
    I inputs, M copies of blocks. Integer tensors are int32. Every operator returns fresh tensors;
    only ``attend_*`` and ``copy_blocks`` change an argument (the caches).
    """

    name: str
    prefill_tile: int
    """Requests start at multiples of this many tokens in a prefill step."""
    fold_blocks: int
    """Block table widths are multiples of this many blocks."""
    head_dim_multiple: int
    """Head dims are multiples of this."""
    fixes_num_blocks: bool
    """Whether a trace is of one number of blocks; else it is the same for every number."""
    makes_traces: bool
    """Whether ``trace`` does work that is worth keeping."""

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """What of the target's code and of this machine may change a graph or its results.

        Equal in every process, folder and environment that runs the same code on such a machine.
        """

    @property
    def library(self) -> Path | None:
        """The native library that these kernels run, None where there is none.

        On a machine of the same fingerprint it runs as it is: nothing has to be built there.
        """

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Pack a weight once; the module maps ``[R, I]`` to ``[R, O]`` of ``out_dtype``.

        What it keeps elsewhere than in buffers, it counts in a property ``opaque_bytes``.
        """

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros in the target's memory, for caches and static buffers.

        They can be used at once, but their memory may still be on its way, see ``settle``.
        """

    def settle(self) -> None:
        """Wait until all memory that was handed out is there, so that no step waits for it.

        Raises:
            MemoryError: there is less than was handed out.
        """

    def embed(self, ids_R: Tensor, table_VE: Tensor, scale: float = 1.0) -> Tensor:
        """Look up rows of the table: ``[R, E]``. Padded ids are 0.

        Rows are multiplied by ``scale``, which the caller has rounded to the table's dtype, and
        rounded once.
        """

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return ``x / sqrt(mean(x^2) + eps) * weight``, computed in fp32 (fp64 for fp64).

        x is ``[R, E]``, or heads ``[R, H, D]`` (a view with a row stride is fine), of which each
        is normed alone; the weight has its last dimension. Weights of norms are fp32 (fp64 for
        fp64), whatever the dtype of x.
        """

    def add_rms_norm(
        self, x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of ``x + residual`` (rounded to the dtype first) and that sum."""

    def rope(
        self, q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotate the first Y dims of each head of q and k by halves; the others are copied.

        ``cos_sin_CY`` holds Y/2 cosines, then Y/2 sines per position, fp32 (fp64 for fp64); Y is
        even and at most D. Views with a row stride are fine.
        """

    def silu_mul(self, gate_up_R2F: Tensor) -> Tensor:
        """Return ``silu(gate) * up`` for rows that hold gate, then up: ``[R, F]``."""

    def gelu_mul(self, gate_up_R2F: Tensor) -> Tensor:
        """Return ``gelu(gate) * up`` for the same rows, gelu in its approximation by tanh."""

    def soft_cap(self, x_RV: Tensor, cap: float) -> Tensor:
        """Return ``cap * tanh(x / cap)``."""

    def route(
        self, logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
    ) -> tuple[Tensor, Tensor]:
        """Choose A = ``top_k`` experts per row: ids int32 and weights, both ``[R, A]``.

        Takes the largest logits (of equal ones the lowest ids, NaN last), the largest first.
        Weights are the softmax over all X logits in fp32 (fp64 for fp64), divided by their sum
        if ``normalize``. Rows whose ``token_mask`` is 0 have expert -1 and weight 0.
        """

    def make_experts(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> nn.Module:
        """Pack X expert MLPs once.

        The module maps ``x_RE, experts_RA int32, weights_RA`` of ``route`` to ``[R, E]``: the sum
        over a, in order, of ``weights[:, a] * down(act(gate) * up)`` of expert ``experts[:, a]``.
        ``gate_up(x)`` and ``act(gate) * up`` are rounded to the dtype; what ``down`` gives is
        weighted and summed in fp32 (fp64 for fp64) and rounded once. Expert -1 is skipped: rows
        of no expert are exact zeros. ``activation`` is one of ``EXPERT_ACTIVATIONS``.
        """

    def copy_blocks(
        self, k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor
    ) -> None:
        """Copy block ``src[i]`` of both caches to ``dst[i]``, for int32 lists; src -1 skips.

        A destination is named once, is no source, and is not the null block: the copies may run
        in any order.
        """

    def take_rows(self, x_RE: Tensor, rows_P: Tensor) -> Tensor:
        """Return the named rows."""

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

        Request p owns rows ``query_start_loc[p] .. + query_lens[p]``; its token j attends to
        ``context_lens[p] + j + 1`` cached tokens through row p of the table, or to the last
        ``spec.window`` of them. Rows of no request (padding) return zeros. Slot -1 writes
        nothing; table entry -1 is not read.

        ``block_offset [P]`` counts the blocks before the table: column w holds tokens from
        ``(block_offset[p] + w) * block_size`` on. None is 0 for all.

        Caches may be ``torch.float8_e4m3fn``: they hold ``k / spec.k_scale`` rounded to nearest
        even, at most 448 in size (NaN stays NaN). The new tokens too are attended to as stored.
        """

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
        """Write, then attend, with R = S*Q rows in request order: ``[R, H*D]``.

        Token j of request s attends to ``context_lens[s] + j + 1`` cached tokens; rows at
        ``j >= query_lens[s]`` return zeros. ``spec`` and ``block_offset [S]`` as above.
        """

    def for_tracing(self) -> KernelSet:
        """Return kernels whose tensors have no memory, to ``trace`` without weights."""

    def trace(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor] = ()
    ) -> bytes:
        """Compile one static graph as far as shapes and dtypes tell: the slow part.

        ``graph``, ``inputs`` and ``outputs`` may be those of ``for_tracing``; of the outputs only
        the memory that they are in counts. Equal graphs give equal bytes.
        """

    def load(
        self,
        traced: bytes,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
    ) -> Callable[[], None]:
        """Return what ``compile`` returns, from what ``trace`` returned: the fast part.

        Raises:
            ValueError: it is no trace of this target, or not one of this graph.
        """

    def compile(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Compile one static graph over these very buffers.

        ``inputs`` is the (nested) argument list of ``graph``; its tensors are the static buffers
        that callers fill in place. Each call of the result runs the graph once and leaves what
        the graph returns (one tensor, a tuple of them, or None) in ``outputs``, in order. An
        output may be an input, and is written after the graph has read everything.
        """
