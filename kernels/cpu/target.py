"""The KernelSet `cpu`: own C++ kernels, graphs lowered to lists of commands."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ..contract import AttentionSpec, check_tensor
from ..source_digest import source_digest
from ..static_graph import Trace, bind, trace
from .attention import spec_args
from .buffers import BufferPool
from .build import BuildError, detect_instruction_set
from .experts import Experts
from .graph_file import FORMAT, read_trace, write_trace
from .linear import Linear
from .memory import Arena, NoMemory
from .native import load_library
from .program import lower
from .sampler_operators import CpuSamplerOperators


class CpuKernels(CpuSamplerOperators):
    """Operators in C++ for fp32 and bf16.

    A row's result does not depend, to the bit, on the number of rows, on its place among them, on
    the table width or on the phase. An index that lies outside its table is memory-safe: a token
    id, row or position reads entry 0, a slot writes nothing, a block is not read or copied, an
    expert is skipped.

    Where they cannot be built, as without a C++ compiler, an instance is of the subclass
    ``TorchKernels``, with a warning.
    """

    name = "cpu"
    prefill_tile = 1
    fold_blocks = 1
    head_dim_multiple = 8
    fixes_num_blocks = False
    makes_traces = True

    def __new__(cls, compiler: str | None = None, built: Path | None = None) -> CpuKernels:
        """Choose the class that can run here.

        Args:
            compiler: its path; None looks on PATH.
            built: a library that was built for this machine's instruction set; nothing is built.
        """
        if cls is not CpuKernels:
            return object.__new__(cls)
        try:
            library = load_library(compiler, built)
        except BuildError as error:
            from .fallback import TorchKernels

            warnings.warn(
                f"the cpu kernels run on plain torch, several times slower: {error}",
                RuntimeWarning,
                stacklevel=2,
            )
            return object.__new__(TorchKernels)
        kernels = object.__new__(cls)
        kernels._library = library
        return kernels

    def __init__(self, compiler: str | None = None, built: Path | None = None) -> None:
        """Start with no memory; ``__new__`` has loaded the library."""
        self._arena = Arena()
        self._pool = BufferPool(self._arena)

    @property
    def fingerprint(self) -> Mapping[str, str]:
        """The machine's instruction set, what the library was built from, and the sources."""
        return {
            "instruction_set": detect_instruction_set().name,
            **self._library.built_from,
            "sources": source_digest("*.py", "cpu/*.py"),
            "trace_format": str(FORMAT),
        }

    @property
    def library(self) -> Path | None:
        """The library of C++ kernels."""
        return Path(self._library.path)

    def make_linear(
        self, weight_OI: Tensor, bias_O: Tensor | None, out_dtype: torch.dtype
    ) -> nn.Module:
        """Pack the weight; the original is not kept."""
        return Linear(weight_OI, bias_O, out_dtype, arena=self._arena, library=self._library)

    def zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Return zeros on large pages, where the system has them."""
        return self._arena.zeros(shape, dtype)

    def settle(self) -> None:
        """Wait until all pages of what ``zeros`` returned are there."""
        self._arena.settle()

    def embed(self, ids_R: Tensor, table_VE: Tensor, scale: float = 1.0) -> Tensor:
        """Return the rows ``[R, E]`` of the table, times ``scale`` and rounded once."""
        if scale == 1.0:
            return self.take_rows(table_VE, ids_R)
        result: Tensor = self._apply("take_scaled_rows", table_VE, ids_R, scale)
        return result

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return ``x / sqrt(mean(x^2) + eps) * weight`` over the last dimension, rounded once."""
        result: Tensor = self._apply("rms_norm", x, weight, eps)
        return result

    def add_rms_norm(
        self, x_RE: Tensor, residual_RE: Tensor, weight_E: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Return the norm of ``x + residual`` and that sum; the norm sees the rounded sum."""
        normed, total = self._apply("add_rms_norm", x_RE, residual_RE, weight_E, eps)
        return normed, total

    def rope(
        self, q_RHD: Tensor, k_RKD: Tensor, positions_R: Tensor, cos_sin_CY: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Rotate the first half of each head's Y dims against the second, copy the others."""
        q, k = self._apply("rope", q_RHD, k_RKD, positions_R, cos_sin_CY)
        return q, k

    def silu_mul(self, gate_up_R2F: Tensor) -> Tensor:
        """Return ``silu(gate) * up``: ``[R, F]``, rounded once."""
        result: Tensor = self._apply("silu_mul", gate_up_R2F)
        return result

    def gelu_mul(self, gate_up_R2F: Tensor) -> Tensor:
        """Return ``gelu(gate) * up``: ``[R, F]``, rounded once; gelu is approximated by tanh."""
        result: Tensor = self._apply("gelu_mul", gate_up_R2F)
        return result

    def soft_cap(self, x_RV: Tensor, cap: float) -> Tensor:
        """Return ``cap * tanh(x / cap)``, rounded once."""
        result: Tensor = self._apply("soft_cap", x_RV, cap)
        return result

    def route(
        self, logits_RX: Tensor, token_mask_R: Tensor, top_k: int, normalize: bool
    ) -> tuple[Tensor, Tensor]:
        """Return the ``top_k`` experts of each row, and their weights: int32 and fp32."""
        experts, weights = self._apply("route", logits_RX, token_mask_R, top_k, normalize)
        return experts, weights

    def make_experts(self, gate_up_X2FE: Tensor, down_XEF: Tensor, activation: str) -> nn.Module:
        """Pack the weights of X expert MLPs; the originals are not kept."""
        weights = (gate_up_X2FE, down_XEF, activation)
        return Experts(*weights, arena=self._arena, library=self._library)

    def copy_blocks(
        self, k_cache_NBKD: Tensor, v_cache_NBKD: Tensor, src_M: Tensor, dst_M: Tensor
    ) -> None:
        """Copy block ``src[i]`` of both caches to ``dst[i]``; src -1 skips.

        A block outside the cache is neither read nor written, and copies run in order.
        """
        self._apply("copy_blocks", k_cache_NBKD, v_cache_NBKD, src_M, dst_M)

    def take_rows(self, x_RE: Tensor, rows_P: Tensor) -> Tensor:
        """Return the named rows ``[P, E]``."""
        result: Tensor = self._apply("take_rows", x_RE, rows_P)
        return result

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
            ValueError: an input has the wrong shape, dtype or layout.
        """
        check_tensor("tile_request", tile_request, (q_THD.shape[0],), torch.int32)
        lens = (context_lens_P, query_lens_P, block_offset)
        cached = (k_cache_NBKD, v_cache_NBKD, slot_mapping_T, block_table_PW)
        options = (*spec_args(spec), query_start_loc)
        result: Tensor = self._apply(
            "attend_prefill", q_THD, k_TKD, v_TKD, *cached, *lens, *options
        )
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
        """Write, then attend, with R = S*Q rows in request order: ``[R, H*D]``.

        Raises:
            ValueError: an input has the wrong shape, dtype or layout.
        """
        lens = (context_lens_S, query_lens_S, block_offset)
        cached = (k_cache_NBKD, v_cache_NBKD, slot_mapping_R, block_table_SW)
        result: Tensor = self._apply(
            "attend_decode", q_RHD, k_RKD, v_RKD, *cached, *lens, *spec_args(spec)
        )
        return result

    def compile(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor]
    ) -> Callable[[], None]:
        """Lower one static graph to commands over these very buffers.

        The result writes straight into ``outputs``, where they are no inputs. What it computes in
        between is in memory that all graphs of this kernel set share: two of them must never run
        at the same time.

        Raises:
            ValueError: the graph is not static, or its results do not fit ``outputs``.
        """
        return self._lower(trace(graph, inputs), graph, inputs, outputs)

    def for_tracing(self) -> CpuKernels:
        """Return kernels that hold shapes only: what they trace, these load."""
        kernels = object.__new__(CpuKernels)
        kernels._library = self._library
        kernels._arena = NoMemory()
        kernels._pool = BufferPool(kernels._arena)
        return kernels

    def trace(
        self, graph: nn.Module, inputs: Sequence[object], outputs: Sequence[Tensor] = ()
    ) -> bytes:
        """Return what ``load`` takes: the operators of a graph, without weights and buffers.

        Only shapes and dtypes of ``graph`` and ``inputs`` count, so that they may be on the
        device meta.

        Raises:
            ValueError: the graph is not static, or holds what has no place in a file.
        """
        return write_trace(trace(graph, inputs))

    def load(
        self,
        traced: bytes,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
    ) -> Callable[[], None]:
        """Return what ``compile`` returns, from what ``trace`` returned; compiles nothing.

        Raises:
            ValueError: it is no trace, or not one of this graph and these buffers.
        """
        return self._lower(read_trace(traced), graph, inputs, outputs)

    def _lower(
        self,
        traced: Trace,
        graph: nn.Module,
        inputs: Sequence[object],
        outputs: Sequence[Tensor],
    ) -> Callable[[], None]:
        static = bind(traced, graph, inputs)
        return lower(static, outputs, library=self._library, pool=self._pool)
