"""Seconds of a step from a model's sizes and a device's limits: nothing is measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from .cost import Floats, StepCosts
from .devices import DeviceSheet
from .model_shape import ModelShape
from .reads import ALL_CONTEXT, DecodeReads, Extent


@dataclass(frozen=True, slots=True, kw_only=True)
class Roofline(StepCosts):
    """Launch, then products with weights, then attention; each at the limit it meets first.

    Attributes:
        model: what is run.
        bytes_s: bytes per second that a step reads at.
        flop_s: operations per second that it multiplies at.
        launch_s: seconds of a step that does nothing.
        num_logits_rows: rows of logits of a prefill step; a decode step has one per request.
        reads: what decode steps pay for of their contexts. Where a kernel reads what is cached
            and computes all of its context, neither is taken to hide the other.
    """

    model: ModelShape
    bytes_s: float
    flop_s: float
    launch_s: float
    num_logits_rows: int = 1
    reads: DecodeReads = ALL_CONTEXT
    source: str = "roofline"
    error_share: float | None = None

    @classmethod
    def of(
        cls,
        model: ModelShape,
        sheet: DeviceSheet,
        dtype: str,
        *,
        num_logits_rows: int = 1,
        reads: DecodeReads = ALL_CONTEXT,
    ) -> Roofline:
        """Take the limits of a device; ``dtype`` is what products are computed in.

        Raises:
            ValueError: the sheet has no such dtype.
        """
        return cls(
            model=model,
            bytes_s=sheet.effective_bytes_s,
            flop_s=sheet.effective_flop_s(dtype),
            launch_s=sheet.launch_s,
            num_logits_rows=num_logits_rows,
            reads=reads,
        )

    @property
    def ridge_rows(self) -> float:
        """Rows from which on a prefill step multiplies longer than it reads weights.

        Graphs of fewer rows save nothing. With experts, the weights of all of them count.
        """
        model = self.model
        used = model.num_row_params + model.num_experts_per_row * model.num_expert_params
        head = 2 * model.num_head_params * self.num_logits_rows
        read = float(model.read_bytes(np.inf))
        return max(0.0, (read * self.flop_s / self.bytes_s - head) / (2 * used))

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the seconds of a full prefill step."""
        flop = self.model.attention_flop(num_tokens, prefix_lens)
        read = self.model.kv_read_bytes(prefix_lens)
        attention = np.maximum(flop / self.flop_s, read / self.bytes_s)
        seconds: Floats = attention + self._linear_s(num_tokens, self.num_logits_rows)
        return seconds

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes in a graph, whatever is cached."""
        seqs = np.asarray(num_seqs, dtype=np.float64)
        attention = self._decode_attention_s(seqs, context_lens, "bucket")
        seconds: Floats = attention + self._linear_s(seqs, seqs)
        return seconds

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes for what its requests have cached."""
        return self._decode_attention_s(num_seqs, context_lens, "live")

    def _decode_attention_s(
        self, num_seqs: ArrayLike, context_lens: ArrayLike, extent: Extent
    ) -> Floats:
        """Return the seconds of what is read and computed of contexts to this extent."""
        seqs = np.asarray(num_seqs, dtype=np.float64)
        flop = seqs * self.model.row_attention_flop(context_lens) * (self.reads.flop == extent)
        read = seqs * self.model.kv_read_bytes(context_lens) * (self.reads.num_bytes == extent)
        seconds: Floats = np.maximum(flop / self.flop_s, read / self.bytes_s)
        return seconds

    def _linear_s(self, num_rows: ArrayLike, num_logits_rows: ArrayLike) -> Floats:
        """Return launch and products: weights are read while rows are multiplied with them."""
        flop = self.model.linear_flop(num_rows, num_logits_rows)
        read = self.model.read_bytes(num_rows)
        seconds: Floats = self.launch_s + np.maximum(flop / self.flop_s, read / self.bytes_s)
        return seconds
