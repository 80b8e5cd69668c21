"""Models, and tables of steps whose seconds follow a rule that the test knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from noria.bucketing.costs.model_shape import ModelShape
from noria.bucketing.costs.table import CostTable, Device, GraphCost, StepTime

LLAMA_3_8B = ModelShape(
    num_layers=32,
    hidden_size=4096,
    intermediate_size=14336,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    vocab_size=128256,
)
Rule = Callable[[int, int], float]
PREFILL = [(n, p) for n in (16, 64, 256, 1024) for p in (0, 256, 1024) if n + p <= 2048]
DECODE = [(s, c) for s in (1, 2, 4, 8) for c in (128, 512, 2048)]


def make_table(
    prefill: Rule,
    decode: Rule,
    *,
    prefill_shapes: Sequence[tuple[int, int]] = PREFILL,
    decode_shapes: Sequence[tuple[int, int]] = DECODE,
    model: ModelShape = LLAMA_3_8B,
    graphs: tuple[GraphCost, ...] = (),
) -> CostTable:
    """Return a table of a model whose steps take what the rules say of rows and context."""
    return CostTable(
        device=Device("a processor", "cpu", 2),
        model_name="a model",
        dtype="bfloat16",
        model=model,
        num_logits_rows=1,
        software={"noria": "0"},
        prefill=tuple(StepTime("p", n, p, prefill(n, p), 0.0, 3) for n, p in prefill_shapes),
        decode=tuple(StepTime("d", s, c, decode(s, c), 0.0, 3) for s, c in decode_shapes),
        graphs=graphs,
    )


@pytest.fixture
def llama() -> ModelShape:
    return LLAMA_3_8B


@pytest.fixture(name="make_table")
def _make_table() -> Callable[..., CostTable]:
    return make_table
