"""Operations and bytes of a step, against sums over layers, rows and tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from noria.bucketing.costs.model_shape import ModelShape

SMALL = ModelShape(
    num_layers=3,
    hidden_size=8,
    intermediate_size=20,
    num_heads=4,
    num_kv_heads=2,
    head_dim=3,
    vocab_size=50,
    weight_bytes=2,
    kv_bytes=1,
)
ROUTED = replace(
    SMALL,
    num_expert_layers=2,
    num_experts=8,
    num_experts_per_row=2,
    expert_intermediate_size=5,
)


def test_parameters_of_llama_3_8b(llama: ModelShape) -> None:
    embedding = llama.num_head_params

    assert llama.num_row_params + 2 * embedding == pytest.approx(8.03e9, rel=0.001)
    assert llama.kv_token_bytes == 131_072
    assert llama.read_bytes(1) == 2 * (llama.num_row_params + embedding)
    assert replace(llama, reads_embedding=True).read_bytes(1) - llama.read_bytes(1) == 2 * embedding


def test_products_count_two_operations_per_weight_and_row() -> None:
    per_layer = 8 * (12 + 6 + 6) + 12 * 8 + 3 * 8 * 20

    assert SMALL.num_row_params == 3 * per_layer
    assert SMALL.linear_flop(7, 2) == 2 * (3 * per_layer * 7 + 8 * 50 * 2)


def test_a_row_multiplies_with_its_experts_only() -> None:
    dense, attention = 3 * 8 * 20, 8 * 24 + 12 * 8
    shared = 3 * attention + dense + 2 * 8 * 8
    expert = 2 * 3 * 8 * 5

    assert ROUTED.linear_flop(1, 0) == 2 * (shared + 2 * expert)
    assert ROUTED.read_bytes(1) == 2 * (shared + 8 * 50 + 2 * expert)
    assert ROUTED.read_bytes(10_000) == pytest.approx(2 * (shared + 8 * 50 + 8 * expert))


def test_experts_that_rows_touch_are_those_of_random_choices() -> None:
    rng = np.random.default_rng(0)
    draws = [
        len({e for _ in range(5) for e in rng.choice(8, 2, replace=False)}) for _ in range(4000)
    ]

    touched = (ROUTED.read_bytes(5) - ROUTED.read_bytes(0)) / (2 * ROUTED.num_expert_params)

    assert touched == pytest.approx(np.mean(draws), rel=0.01)


@pytest.mark.parametrize("windows", [(), (4,), (4, 9, 4)], ids=["full", "one", "all"])
@pytest.mark.parametrize("prefix", [0, 3, 7, 40])
def test_attention_counts_the_tokens_that_each_row_sees(
    windows: tuple[int, ...], prefix: int
) -> None:
    model = replace(SMALL, windows=windows)
    spans = [*windows, *[10**9] * (3 - len(windows))]
    # Half of a row's own token, as in n^2 / 2: rows are a continuum.
    seen = sum(min(prefix + row + 0.5, span) for span in spans for row in range(6))

    assert model.attention_flop(6, prefix) == pytest.approx(4 * 4 * 3 * seen)


def test_causal_attention_and_prefix_are_what_the_textbook_says(llama: ModelShape) -> None:
    n, p, layers, dim = 1000, 300, 32, 4096

    assert llama.attention_flop(n, 0) == 2 * layers * dim * n**2
    assert llama.attention_flop(n, p) == 2 * layers * dim * n**2 + 4 * layers * dim * n * p


def test_a_window_bounds_what_a_row_of_its_layers_reads_and_computes() -> None:
    model = replace(SMALL, windows=(4,))
    token = 2 * 2 * 3 * 1

    assert model.kv_read_bytes([2, 10]).tolist() == [3 * 2 * token, (4 + 2 * 10) * token]
    assert SMALL.kv_read_bytes(10) == 10 * SMALL.kv_token_bytes
    assert model.row_attention_flop(10) == 4 * 4 * 3 * (4 + 2 * 10)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"num_layers": 0}, "num_layers: 0 is not"),
        ({"hidden_size": -8}, "hidden_size: -8 is not"),
        ({"head_dim": 2.5}, "head_dim: 2.5 is not"),
        ({"kv_bytes": float("nan")}, "kv_bytes: nan is not"),
        ({"windows": (0,)}, "windows: 0 is not"),
        ({"windows": (4,) * 4}, "windows: 4 layers of 3"),
        ({"num_expert_layers": 4}, "num_expert_layers: 4 layers of 3"),
        ({"num_expert_layers": 1}, "num_experts_per_row: is 0"),
        ({"num_experts": 2, "num_experts_per_row": 3}, "num_experts_per_row: 3 of 2"),
    ],
)
def test_sizes_of_no_model_are_refused(change: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        replace(SMALL, **change)
