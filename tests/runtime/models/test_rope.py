from __future__ import annotations

import math

import pytest
import torch

from noria.runtime.models.rope import rope_table
from noria.runtime.models.rope_scaling import LinearScaling, Rope, YarnScaling


def test_rows_hold_cosines_then_sines_of_the_position() -> None:
    table = rope_table(Rope(10000.0), 8, 5, dtype=torch.float64)

    assert table.shape == (5, 8)
    assert table[0].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
    assert table[3, 1].item() == pytest.approx(math.cos(0.3), rel=1e-14)
    assert table[3, 5].item() == pytest.approx(math.sin(0.3), rel=1e-14)


def test_angles_are_rounded_once() -> None:
    exact = rope_table(Rope(10000.0), 8, 4096, dtype=torch.float64)

    assert torch.equal(rope_table(Rope(10000.0), 8, 4096, dtype=torch.float32), exact.float())


def test_only_the_rotary_dims_have_columns() -> None:
    table = rope_table(Rope(10000.0, None, 0.5), 8, 5, dtype=torch.float64)

    assert table.shape == (5, 4)
    assert torch.equal(table, rope_table(Rope(10000.0), 4, 5, dtype=torch.float64))


def test_the_attention_factor_scales_cosines_and_sines() -> None:
    scaling = YarnScaling(4.0, 16, 1.25)

    table = rope_table(Rope(10000.0, scaling), 8, 64, dtype=torch.float64)

    assert table[0].tolist() == [1.25] * 4 + [0] * 4
    lengths = table.unflatten(1, (2, 4)).square().sum(dim=1)
    assert torch.allclose(lengths, torch.tensor(1.25**2, dtype=torch.float64))


def test_linear_scaling_divides_positions() -> None:
    plain = rope_table(Rope(10000.0), 8, 16, dtype=torch.float64)

    scaled = rope_table(Rope(10000.0, LinearScaling(2.0)), 8, 32, dtype=torch.float64)

    assert torch.allclose(scaled[::2], plain, rtol=1e-14)
