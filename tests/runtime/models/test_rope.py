from __future__ import annotations

import math

import pytest
import torch

from noria.runtime.models.architecture import Architecture, Rope
from noria.runtime.models.rope import rope_table

TINY = Architecture(
    vocab_size=61,
    hidden_size=32,
    intermediate_size=48,
    num_layers=1,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    rope=Rope(10000.0),
)


def test_rows_hold_cosines_then_sines_of_the_position() -> None:
    table = rope_table(TINY, 5, dtype=torch.float64)

    assert table.shape == (5, 8)
    assert table[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert table[3, 1].item() == pytest.approx(math.cos(0.3), rel=1e-14)
    assert table[3, 5].item() == pytest.approx(math.sin(0.3), rel=1e-14)


def test_angles_are_rounded_once() -> None:
    exact = rope_table(TINY, 4096, dtype=torch.float64)

    assert torch.equal(rope_table(TINY, 4096, dtype=torch.float32), exact.float())
