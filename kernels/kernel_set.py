"""The set of operators that a target provides and that models are built from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from .contract import AttentionSpec


class KernelSet(Protocol):
    """Operators of one target.

    Shape letters: T tokens of a prefill bucket, S requests of a decode bucket, Q query tokens per
    request, R rows (T or S*Q), P requests of a prefill step, W block table columns, N blocks,
    B block size, H query heads, K key/value heads, D head dim, E hidden size, F intermediate
    size, V vocabulary, O outputs, I inputs. Integer tensors are int32. Every operator returns
    fresh tensors; only ``attend_*`` change an argument (the caches).
    """

    name: str
    prefill_tile: int
    """Requests start at multiples of this many tokens in a prefill step."""
    fold_blocks: int
    """Block table widths are multiples of this many blocks."""
    head_dim_multiple: int
    """Head dims are multiples of this."""

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Pack a weight once; the module maps ``[R, I]`` to ``[R, O]`` of ``out_dtype``.

        What it keeps elsewhere than in buffers, it counts in a property ``opaque_bytes``.
        """

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros in the target's memory, for caches and static buffers."""

    def embed(self, ids_R: Tensor, table_VE: Tensor) -> Tensor:
        """Look up rows of the table: ``[R, E]``. Padded ids are 0."""

    def rms_norm(self, x_RE: Tensor, weight_E: Tensor, eps: float) -> Tensor:
        """Return ``x / sqrt(mean(x^2) + eps) * weight``, computed in fp32 (fp64 for fp64).

        Weights of norms are fp32 (fp64 for fp64), whatever the dtype of x.
        """

    def add_rms_norm(
        self, x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of ``x + residual`` (rounded to the dtype first) and that sum."""

    def rope(
        self, q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CD: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotate halves of q and k (views with a row stride are fine).

        ``cos_sin_CD`` holds D/2 cosines, then D/2 sines per position, fp32 (fp64 for fp64).
        """

    def silu_mul(self, gate_up_R2F: Tensor) -> Tensor:
        """Return ``silu(gate) * up`` for rows that hold gate, then up: ``[R, F]``."""

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

    def greedy(self, logits_RV: Tensor) -> Tensor:
        """Return the id of the largest logit per row, int32 ``[R]``; ties take the lowest id."""

    def sample(
        self,
        logits_RV: Tensor,
        temperature_R: Tensor,
        top_k_R: Tensor,
        top_p_R: Tensor,
        uniform_R: Tensor,
    ) -> Tensor:
        """Draw one id per row, int32 ``[R]``.

        Keeps the ``top_k`` largest logits (0: all), divides by the temperature, keeps the
        smallest set of largest probabilities whose mass reaches ``top_p`` (at least one token),
        then walks the kept tokens in id order until their cumulated mass exceeds ``uniform``
        (in [0, 1)) times the kept mass. Equal logits rank by id. Temperature 0 is greedy.
        """

    def compile(
        self, graph: nn.Module, inputs: Sequence[object], output: Tensor
    ) -> Callable[[], None]:
        """Compile one static graph over these very buffers.

        ``inputs`` is the (nested) argument list of ``graph``; its tensors are the static buffers
        that callers fill in place. Each call of the result runs the graph once and leaves what
        the graph returns in ``output``.
        """
