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
from .table import CostTable, StepTime

Terms = Callable[[Floats, Floats], Floats]
"""From rows and contexts ``[...]`` to what context costs ``[..., 2]``: 0 without context, rising
with both."""


class MeasuredCosts(StepCosts):
    """Costs of a table's model on its device.

    They rise with rows and with context. Beyond the largest measured rows the curve goes on as
    steeply as it ended, below the smallest it is flat (see ``RisingCurve``); ``is_measured`` tells.

    Attributes:
        error_share: mean distance from the measured seconds, as a share of them: noise that was
            taken out, and what the terms of the context leave.
    """

    def __init__(self, table: CostTable) -> None:
        """Fit curves and terms.

        Raises:
            ValueError: a prefill size lacks its step without a prefix, or all decode steps have
                the same context.
        """
        bare = {step.num_rows for step in table.prefill if step.context == 0}
        if missing := sorted({step.num_rows for step in table.prefill} - bare):
            raise ValueError(f"costs.prefill: {missing[0]} rows lack a step without a prefix")
        if len({step.context for step in table.decode}) == 1:
            raise ValueError("costs.decode: all steps have one context; measure a second one")
        self.source = "measured"
        self._phases = {
            "prefill": _fit(table.prefill, _prefix_terms(table.model)),
            "decode": _fit(table.decode, _context_terms(table.model)),
        }
        errors = [
            self._phases["prefill"].error_shares(table.prefill),
            self._phases["decode"].error_shares(table.decode),
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
        """Return the seconds of a decode step, all of its contexts read."""
        return self._phases["decode"].seconds(num_seqs, context_lens)

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
        rows, contexts = np.broadcast_arrays(
            np.asarray(num_rows, dtype=np.float64), np.asarray(context, dtype=np.float64)
        )
        seconds: Floats = self.curve(rows) + self.terms(rows, contexts) @ self.factors
        return seconds

    def error_shares(self, steps: Sequence[StepTime]) -> Floats:
        rows, contexts, seconds = _arrays(steps)
        shares: Floats = np.abs(self.seconds(rows, contexts) - seconds) / seconds
        return shares


def _fit(steps: Sequence[StepTime], terms: Terms) -> _Phase:
    """Fit the terms to what context adds at each size, then the curve to what is left."""
    rows, contexts, seconds = _arrays(steps)
    order = np.lexsort((contexts, rows))
    rows, contexts, seconds = rows[order], contexts[order], seconds[order]
    sizes, firsts, group = np.unique(rows, return_index=True, return_inverse=True)
    columns = terms(rows, contexts)
    base = firsts[group]
    # Each step counts by its relative error, so that short ones are not lost beside long ones.
    added = (columns - columns[base]) / seconds[:, None]
    factors = nonnegative_least_squares(added, (seconds - seconds[base]) / seconds)
    bare = np.maximum(seconds - columns @ factors, 0)[firsts]
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


def _arrays(steps: Sequence[StepTime]) -> tuple[Floats, Floats, Floats]:
    """Return rows, contexts and seconds of steps."""
    rows = np.array([float(step.num_rows) for step in steps])
    contexts = np.array([float(step.context) for step in steps])
    return rows, contexts, np.array([step.seconds for step in steps])
