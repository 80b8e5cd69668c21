"""Measured costs whose steps take a second per row, whatever their context."""

from __future__ import annotations

from noria.bucketing.costs.cost import GraphFees
from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.saved import SavedCosts
from noria.bucketing.costs.table import CostTable, Device, GraphCost, StepTime

MODEL = ModelShape(
    num_layers=1,
    hidden_size=1,
    intermediate_size=1,
    num_heads=1,
    num_kv_heads=1,
    head_dim=1,
    vocab_size=1,
)


def row_seconds(fees: GraphFees) -> SavedCosts:
    """Return the costs; graphs cost the base of the fees."""
    shapes = [(size, context) for size in (1, 64) for context in (0, 64)]
    cost = (fees.base_compile_s, int(fees.base_bytes))
    return SavedCosts.of_table(
        CostTable(
            device=Device("a processor", "cpu", 1),
            model_name="a model",
            dtype="float32",
            model=MODEL,
            num_logits_rows=1,
            software={},
            prefill=tuple(StepTime("p", n, c, float(n), 0.0, 1) for n, c in shapes),
            decode=tuple(StepTime("d", n, c + 1, float(n), 0.0, 1) for n, c in shapes),
            graphs=(GraphCost("p", 64, *cost), GraphCost("d", 64, *cost)),
        )
    )
