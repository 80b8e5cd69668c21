"""What was measured of the graphs of a model on a device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields

import numpy as np

from .cost import Floats, GraphFees
from .devices import DeviceSheet
from .model_shape import ModelShape


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of full steps of one shape.

    Attributes:
        graph: label of the graph that ran.
        num_rows: tokens of a prefill step, requests of a decode step.
        context: cached tokens before those of a prefill step; in a decode step, the tokens that
            each request has, its new one included.
        seconds: the median of its rounds.
        spread: half of the rounds lie within so much of each other, as a share of ``seconds``.
        num_rounds: how often it ran.
        graph_context: tokens of one request that the graph has room for; None: as many as there
            are.
    """

    graph: str
    num_rows: int
    context: int
    seconds: float
    spread: float
    num_rounds: int
    graph_context: int | None = None

    @property
    def room(self) -> int:
        """Tokens of one request that the graph has room for."""
        return self.context if self.graph_context is None else self.graph_context


@dataclass(frozen=True, slots=True)
class GraphCost:
    """What it took to have one graph: seconds of compiling it, and bytes of what came out."""

    graph: str
    num_rows: int
    compile_s: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Device:
    """Where steps were measured; times of one device say little of another."""

    name: str
    backend: str
    num_threads: int

    def __str__(self) -> str:
        """Say it in a few words."""
        return f"{self.name}, backend {self.backend}, {self.num_threads} threads"


@dataclass(frozen=True, slots=True, kw_only=True)
class CostTable:
    """Measured steps of one model on one device.

    Attributes:
        model_name: what reports call the model.
        dtype: what it computes in.
        model: its sizes.
        num_logits_rows: rows of logits of a prefill step.
        software: names and versions of what ran.
        sheet: measured limits of the device; None where nobody measured them.
        others_share: share of the processors, 0 to 1, that others used meanwhile; None: not known.
    """

    device: Device
    model_name: str
    dtype: str
    model: ModelShape
    num_logits_rows: int
    software: Mapping[str, str]
    prefill: tuple[StepTime, ...]
    decode: tuple[StepTime, ...]
    graphs: tuple[GraphCost, ...] = ()
    sheet: DeviceSheet | None = None
    others_share: float | None = None

    def __post_init__(self) -> None:
        """Refuse a table from which no cost follows."""
        for phase in ("prefill", "decode"):
            steps = getattr(self, phase)
            if not steps:
                raise ValueError(f"costs.{phase}: no step was measured")
            seen = set()
            for step in steps:
                if (step.num_rows, step.context) in seen:
                    raise ValueError(
                        f"costs.{phase}: {step.num_rows} rows with context {step.context} are "
                        "in it twice"
                    )
                seen.add((step.num_rows, step.context))

    @property
    def fees(self) -> GraphFees | None:
        """Seconds and bytes of a graph, as lines over its rows; None where none was compiled."""
        if not self.graphs:
            return None
        rows = np.array([float(graph.num_rows) for graph in self.graphs])
        base_s, row_s = _line(rows, np.array([graph.compile_s for graph in self.graphs]))
        base, per_row = _line(rows, np.array([float(graph.num_bytes) for graph in self.graphs]))
        return GraphFees(base_s, row_s, base, per_row)

    def check_same(self, device: Device, *, model: ModelShape, dtype: str) -> None:
        """Refuse to be used for another device or model than was measured.

        Raises:
            ValueError: says what was measured, and what is planned for.
        """
        if device != self.device:
            raise ValueError(f"costs were measured on {self.device}, not on {device}")
        if dtype != self.dtype:
            raise ValueError(f"costs were measured in {self.dtype}, not in {dtype}")
        for field in fields(ModelShape):
            key = field.name
            measured, wanted = getattr(self.model, key), getattr(model, key)
            if measured != wanted:
                raise ValueError(
                    f"costs were measured with {self.model_name}, another model: its {key} is "
                    f"{measured}, not {wanted}"
                )


def _line(rows: Floats, values: Floats) -> tuple[float, float]:
    """Return base and slope of the nearest line of which neither is negative."""
    spread = rows - rows.mean()
    denominator = float(spread @ spread)
    slope = max(0.0, float(spread @ values) / denominator) if denominator else 0.0
    base = float(values.mean() - slope * rows.mean())
    if base >= 0:
        return base, slope
    return 0.0, float(rows @ values / (rows @ rows))
