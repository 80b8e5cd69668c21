"""A table of measured costs for readers, and how near its models of costs come to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...bucketing.costs.cost import Floats, StepCosts
from ...bucketing.costs.fit import MIN_NUM_STEPS, FittedCosts
from ...bucketing.costs.measured import MeasuredCosts
from ...bucketing.costs.roofline import Roofline
from ...bucketing.costs.table import CostTable
from ..step_costs import CONTEXT_READS
from .tables import format_table, percent

LOUD_SHARE = 0.03


def cost_table_text(table: CostTable) -> str:
    """Return a row per step and lines on what was measured; signed columns are distances."""
    models = cost_models(table)
    steps = (*table.prefill, *table.decode)
    foretold = [seconds_of(model, table) for model in models]
    rows = [
        (
            step.graph,
            str(step.num_rows),
            str(step.context),
            f"{1e3 * step.seconds:.3f}",
            percent(step.spread),
            *(f"{100 * (seconds[index] / step.seconds - 1):+.1f}%" for seconds in foretold),
        )
        for index, step in enumerate(steps)
    ]
    header = ("graph", "rows", "context", "ms", "spread", *(model.source for model in models))
    lines = [format_table(header, rows), "", f"{table.model_name} in {table.dtype}, {table.device}"]
    return "\n".join([*lines, *_error_lines(models, table), *_fee_lines(table), *_notes(table)])


def cost_models(table: CostTable) -> Sequence[StepCosts]:
    """Return all models of costs that a table supports."""
    reads = CONTEXT_READS[table.device.backend].decode
    models: list[StepCosts] = [MeasuredCosts(table, reads)]
    if len(table.prefill) + len(table.decode) >= MIN_NUM_STEPS:
        models.append(FittedCosts.fit(table, reads))
    if table.sheet is not None and table.dtype in table.sheet.flop_s:
        roofline = Roofline.of(
            table.model,
            table.sheet,
            table.dtype,
            num_logits_rows=table.num_logits_rows,
            reads=reads,
        )
        models.append(roofline)
    return models


def seconds_of(costs: StepCosts, table: CostTable) -> Floats:
    """Return what a model of costs foretells of each measured step, prefill first."""
    prefill = [(step.num_rows, step.context) for step in table.prefill]
    graphs = [(step.num_rows, step.room) for step in table.decode]
    live = [(step.num_rows, step.context) for step in table.decode]
    decode_s = costs.decode_s(*np.array(graphs).T) + costs.live_s(*np.array(live).T)
    return np.concatenate([costs.prefill_s(*np.array(prefill).T), decode_s])


def _error_lines(models: Sequence[StepCosts], table: CostTable) -> list[str]:
    seconds = np.array([step.seconds for step in (*table.prefill, *table.decode)])
    lines = []
    for model in models:
        error = float(np.abs(seconds_of(model, table) / seconds - 1).mean())
        line = f"{model.source}: {percent(error)} from the measured steps on average"
        if isinstance(model, FittedCosts) and model.left_out_error_share is not None:
            line += f", {percent(model.left_out_error_share)} from steps that are left out of it"
        lines.append(line)
    return lines


def _fee_lines(table: CostTable) -> list[str]:
    if not table.graphs:
        return []
    seconds = sum(graph.compile_s for graph in table.graphs)
    num_bytes = sum(graph.num_bytes for graph in table.graphs)
    return [
        f"{len(table.graphs)} graphs: {seconds:.2f} s and {num_bytes:,} bytes to compile, "
        f"{seconds / len(table.graphs):.3f} s and {num_bytes // len(table.graphs):,} bytes each"
    ]


def _notes(table: CostTable) -> list[str]:
    if table.others_share is None or table.others_share <= LOUD_SHARE:
        return []
    return [
        f"others used {percent(table.others_share)} of the CPUs meanwhile: measure again when the "
        "machine is quiet"
    ]
