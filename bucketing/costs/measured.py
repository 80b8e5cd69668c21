"""Seconds of a step from a table of measured ones: between its sizes and a little beyond them.

Rows: a rising curve through the steps of each size with the least context. Context: two terms that
are fitted to all steps, the bytes of keys and values that it adds, and the operations or, in
decode, the bytes of all requests. Measured grids are no rectangles (a long prefix leaves no room
for many rows), so that lines between their points would not reach everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .cost import Floats, StepCosts
from .isotonic import RisingCurve
from .model_shape import ModelShape
from .nnls import nonnegative_least_squares
from .reads import ALL_CONTEXT, DecodeReads
from .table import CostTable, StepTime

LEAST_BARE_SHARE = 1e-3
"""Of a measured step, what is never put down to its context: no step is for nothing."""
Terms = Callable[[Floats, Floats], Floats]
"""From rows and contexts ``[...]`` to what context costs ``[..., 2]``: 0 without context, rising
with both."""


class MeasuredCosts(StepCosts):
    """Costs of a table's model on its device.

    What context adds to decode steps is taken to be the reading of keys and values: of what was
    cached, or of all that the graph had room for.

    They rise with rows and with context. Beyond the largest measured rows the curve goes on as
    steeply as it ended, below the smallest it is flat (see ``RisingCurve``); ``is_measured`` tells.

    Attributes:
        error_share: mean distance from the measured seconds, as a share of them: noise that was
            taken out, and what the terms of the context leave.
    """

    def __init__(self, table: CostTable, reads: DecodeReads = ALL_CONTEXT) -> None:
        """Fit curves and terms.

        Args:
            table: what was measured.
            reads: what its kernels pay for of contexts in decode steps.

        Raises:
            ValueError: a prefill size lacks its step without a prefix, or all decode steps have
                the same context.
        """
        bare = {step.num_rows for step in table.prefill if step.context == 0}
        if missing := sorted({step.num_rows for step in table.prefill} - bare):
            raise ValueError(f"costs.prefill: {missing[0]} rows lack a step without a prefix")
        decode = decode_steps(table, reads)
        if len(set(decode.contexts.tolist())) == 1:
            raise ValueError("costs.decode: all steps have one context; measure a second one")
        self.source = "measured"
        prefill = Steps.of(table.prefill)
        self._is_live = reads.num_bytes == "live"
        self._phases = {
            "prefill": _fit(prefill, _prefix_terms(table.model)),
            "decode": _fit(decode, _context_terms(table.model)),
        }
        errors = [
            self._phases["prefill"].error_shares(prefill),
            self._phases["decode"].error_shares(decode),
        ]
        self.error_share: float | None = float(np.concatenate(errors).mean())

    def prefill_s(self, num_tokens: ArrayLike, prefix_lens: ArrayLike = 0) -> Floats:
        """Return the seconds of a full prefill step.

        Raises:
            ValueError: a prefix is asked for, and no step with one was measured.
        """
        phase = self._phases["prefill"]
        if not phase.max_context and np.any(np.asarray(prefix_lens) > 0):
            raise ValueError(
                "costs.prefill: no step with a prefix was measured, so nothing is known of "
                "chunks behind the first; measure sizes below max_model_len"
            )
        return phase.seconds(num_tokens, prefix_lens)

    def decode_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes in a graph, whatever is cached."""
        phase = self._phases["decode"]
        return phase.seconds(
            num_seqs, np.zeros_like(context_lens) if self._is_live else context_lens
        )

    def live_s(self, num_seqs: ArrayLike, context_lens: ArrayLike) -> Floats:
        """Return the seconds that a decode step takes for what its requests have cached."""
        if not self._is_live:
            return super().live_s(num_seqs, context_lens)
        return self._phases["decode"].added_s(num_seqs, context_lens)

    def is_measured(
        self, phase: str, num_rows: ArrayLike, context: ArrayLike = 0
    ) -> NDArray[np.bool_]:
        """Return whether steps are within the rows and contexts that were measured.

        Args:
            phase: ``prefill`` or ``decode``.
            num_rows: tokens or requests.
            context: prefix of a prefill step, context of a decode step.
        """
        one = self._phases[phase]
        rows, contexts = np.asarray(num_rows), np.asarray(context)
        is_between = (rows >= one.curve.sizes[0]) & (rows <= one.curve.sizes[-1])
        within: NDArray[np.bool_] = is_between & (contexts <= one.max_context)
        return within


@dataclass(frozen=True, slots=True)
class _Phase:
    """Steps of one phase: a curve over rows at context 0, and factors of the terms."""

    curve: RisingCurve
    terms: Terms
    factors: Floats
    max_context: int

    def seconds(self, num_rows: ArrayLike, context: ArrayLike) -> Floats:
        added = self.added_s(num_rows, context)
        seconds: Floats = self.curve(np.broadcast_to(num_rows, added.shape)) + added
        return seconds

    def added_s(self, num_rows: ArrayLike, context: ArrayLike) -> Floats:
        """Return what context adds."""
        rows, contexts = np.broadcast_arrays(
            np.asarray(num_rows, dtype=np.float64), np.asarray(context, dtype=np.float64)
        )
        seconds: Floats = self.terms(rows, contexts) @ self.factors
        return seconds

    def error_shares(self, steps: Steps) -> Floats:
        found = self.seconds(steps.rows, steps.contexts)
        shares: Floats = np.abs(found - steps.seconds) / steps.seconds
        return shares


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """Measured steps: rows, the context that they paid for, and seconds, ``[n]`` each."""

    rows: Floats
    contexts: Floats
    seconds: Floats

    @classmethod
    def of(cls, steps: Sequence[StepTime], contexts: Sequence[int] | None = None) -> Steps:
        """Return steps, which paid for what was cached unless contexts are given."""
        rows = np.array([float(step.num_rows) for step in steps])
        paid = [step.context for step in steps] if contexts is None else contexts
        seconds = np.array([step.seconds for step in steps])
        return cls(rows, np.array(paid, dtype=np.float64), seconds)


def decode_steps(table: CostTable, reads: DecodeReads) -> Steps:
    """Return the decode steps of a table with the context whose keys and values they read."""
    if reads.num_bytes == "live":
        return Steps.of(table.decode)
    return Steps.of(table.decode, [step.room for step in table.decode])


def _fit(steps: Steps, terms: Terms) -> _Phase:
    """Fit the terms to what context adds at each size, then the curve to what is left."""
    rows, contexts, seconds = steps.rows, steps.contexts, steps.seconds
    order = np.lexsort((contexts, rows))
    rows, contexts, seconds = rows[order], contexts[order], seconds[order]
    sizes, firsts, group = np.unique(rows, return_index=True, return_inverse=True)
    columns = terms(rows, contexts)
    base = firsts[group]
    # Each step counts by its relative error, so that short ones are not lost beside long ones.
    added = (columns - columns[base]) / seconds[:, None]
    factors = nonnegative_least_squares(added, (seconds - seconds[base]) / seconds)
    bare = np.maximum(seconds - columns @ factors, LEAST_BARE_SHARE * seconds)[firsts]
    curve = RisingCurve(sizes, bare, weights=seconds[firsts] ** -2.0)
    return _Phase(curve, terms, factors, int(contexts.max()))


def _prefix_terms(model: ModelShape) -> Terms:
    def terms(rows: Floats, prefix: Floats) -> Floats:
        flop = model.attention_flop(rows, prefix) - model.attention_flop(rows, 0)
        return np.stack([model.kv_read_bytes(prefix), flop], axis=-1)

    return terms


def _context_terms(model: ModelShape) -> Terms:
    def terms(rows: Floats, context: Floats) -> Floats:
        read = model.kv_read_bytes(context)
        return np.stack([read, rows * read], axis=-1)

    return terms
