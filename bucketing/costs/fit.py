"""Seconds of a step from a model's sizes and a few measured steps: a roofline that was fitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .cost import Floats, StepCosts
from .measured import Steps, decode_steps
from .model_shape import ModelShape
from .nnls import nonnegative_least_squares
from .reads import ALL_CONTEXT, DecodeReads
from .table import CostTable

MIN_NUM_STEPS = 4
INTENSITIES = (0.0, *np.geomspace(0.1, 1000, 81).tolist())
"""Operations that may take as long as reading one byte of weights; 0: multiplying alone counts,
and what reading takes is part of the launch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCosts(StepCosts):
    """Launch, products with weights (at least what reading them takes), attention, KV bytes.

    Attributes:
        model: what is run.
        num_logits_rows: rows of logits of a prefill step.
        launch_s: seconds of a step that does nothing.
        flop_s: seconds of one operation of products with weights.
        intensity: such operations that take as long as reading one byte of weights.
        attention_flop_s: seconds of one operation of prefill attention.
        kv_byte_s: seconds of one byte of cached keys and values.
        reads: which of these decode steps read.
        error_share: mean distance from the measured seconds, as a share of them.
        left_out_error_share: the same for each step, as foretold by a fit to all the others; None
            where there are too few.
    """

    model: ModelShape
    num_logits_rows: int
    launch_s: float
    flop_s: float
    intensity: float
    attention_flop_s: float
    kv_byte_s: float
    reads: DecodeReads = ALL_CONTEXT
    source: str = "fitted"
    error_share: float | None = None
    left_out_error_share: float | None = None

    @classmethod
    def fit(cls, table: CostTable, reads: DecodeReads = ALL_CONTEXT) -> FittedCosts:
        """Fit to the steps of a table: four to six, of both phases, say enough.

        Raises:
            ValueError: the table has fewer than four steps.
        """
        num = len(table.prefill) + len(table.decode)
        if num < MIN_NUM_STEPS:
            raise ValueError(f"costs: {num} steps were measured; a fit needs {MIN_NUM_STEPS}")
        everything = np.ones(num, dtype=np.bool_)
        fitted = _fit(table, reads, everything)
        left_out = None
        if num > MIN_NUM_STEPS:
            # Each in turn: what the fit is worth for a graph that it has not seen.
            kept = ~np.eye(num, dtype=np.bool_)
            errors = [_errors(_fit(table, reads, row), table)[~row] for row in kept]
            left_out = float(np.mean(errors))
        error = float(_errors(fitted, table).mean())
        return replace(fitted, error_share=error, left_out_error_share=left_out)

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the seconds of a full prefill step."""
        work = _prefill_work(self.model, num_tokens, prefix_lens, self.num_logits_rows)
        return self._seconds(work)

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes in a graph, whatever is cached."""
        read = np.zeros_like(context_lens) if self._is_live else context_lens
        return self._seconds(_decode_work(self.model, num_seqs, read))

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes for what its requests have cached."""
        read = context_lens if self._is_live else np.zeros_like(context_lens)
        seconds: Floats = _kv_bytes(self.model, num_seqs, read) * self.kv_byte_s
        return seconds

    @property
    def _is_live(self) -> bool:
        return self.reads.num_bytes == "live"

    def _seconds(self, work: Floats) -> Floats:
        seconds: Floats = _columns(work, self.intensity) @ self._factors
        return seconds

    @property
    def _factors(self) -> Floats:
        return np.array([self.launch_s, self.flop_s, self.attention_flop_s, self.kv_byte_s])


def _fit(table: CostTable, reads: DecodeReads, is_kept: NDArray[np.bool_]) -> FittedCosts:
    """Fit to some steps: for each intensity the factors follow, and the nearest fit wins."""
    work, kept = _table_work(table, reads)[is_kept], _table_seconds(table)[is_kept]
    fits = []
    for intensity in INTENSITIES:
        # By relative errors, so that short steps are not lost beside long ones.
        columns = _columns(work, intensity) / kept[:, None]
        factors = nonnegative_least_squares(columns, np.ones(len(kept)))
        fits.append((float(np.linalg.norm(columns @ factors - 1)), intensity, factors))
    _, intensity, factors = min(fits, key=lambda fit: fit[0])
    launch_s, flop_s, attention_flop_s, kv_byte_s = factors.tolist()
    return FittedCosts(
        model=table.model,
        num_logits_rows=table.num_logits_rows,
        launch_s=launch_s,
        flop_s=flop_s,
        intensity=intensity,
        attention_flop_s=attention_flop_s,
        kv_byte_s=kv_byte_s,
        reads=reads,
    )


def _errors(costs: FittedCosts, table: CostTable) -> Floats:
    """Return the distance from each measured step, as a share of it."""
    work = _table_work(table, costs.reads)
    shares: Floats = np.abs(costs._seconds(work) / _table_seconds(table) - 1)
    return shares


def _table_seconds(table: CostTable) -> Floats:
    return np.array([step.seconds for step in (*table.prefill, *table.decode)])


def _table_work(table: CostTable, reads: DecodeReads) -> Floats:
    """Return the work of the steps of both phases ``[m, 4]``."""
    model, prefill, decode = table.model, Steps.of(table.prefill), decode_steps(table, reads)
    return np.concatenate(
        [
            _prefill_work(model, prefill.rows, prefill.contexts, table.num_logits_rows),
            _decode_work(model, decode.rows, decode.contexts),
        ]
    )


def _prefill_work(
    model: ModelShape, rows: ArrayLike, prefix: ArrayLike, num_logits_rows: int
) -> Floats:
    """Return operations and bytes of weights, operations of attention, bytes of the prefix."""
    return _stacked(
        model.linear_flop(rows, num_logits_rows),
        model.read_bytes(rows),
        model.attention_flop(rows, prefix),
        model.kv_read_bytes(prefix),
    )


def _decode_work(model: ModelShape, num_seqs: ArrayLike, contexts: ArrayLike) -> Floats:
    """Return the same of decode steps; attention is one with the bytes that it reads."""
    flop = model.linear_flop(num_seqs, num_seqs)
    kv_bytes = _kv_bytes(model, num_seqs, contexts)
    return _stacked(flop, model.read_bytes(num_seqs), 0.0, kv_bytes)


def _kv_bytes(model: ModelShape, num_seqs: ArrayLike, contexts: ArrayLike) -> Floats:
    read: Floats = np.asarray(num_seqs) * model.kv_read_bytes(contexts)
    return read


def _stacked(*parts: ArrayLike) -> Floats:
    return np.stack(np.broadcast_arrays(*(np.asarray(p, dtype=np.float64) for p in parts)), axis=-1)


def _columns(work: Floats, intensity: float) -> Floats:
    """Return what each factor is multiplied with ``[..., 4]``."""
    linear = np.maximum(work[..., 0], intensity * work[..., 1])
    return _stacked(1.0, linear, work[..., 2], work[..., 3])
