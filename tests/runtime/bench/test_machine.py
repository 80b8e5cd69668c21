"""Measuring the machine; small sizes, since only the arithmetic is tested."""

from __future__ import annotations

import pytest
import torch

from noria.runtime.bench import machine
from noria.runtime.bench.machine import cpu_name, measure_machine


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "READ_BYTES", 4096)
    monkeypatch.setattr(machine, "MATRIX_SIZE", 8)


@pytest.mark.usefixtures("_small")
def test_every_dtype_has_a_peak_and_torch_keeps_its_threads() -> None:
    before = torch.get_num_threads()

    found = measure_machine(["float32", "bfloat16"], before + 1)

    assert set(found.flop_s) == {"float32", "bfloat16"}
    assert min(*found.flop_s.values(), found.read_bytes_s) > 0
    assert found.num_threads == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.usefixtures("_small")
def test_rates_are_the_best_of_the_repeats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_best_seconds", lambda work: 0.5)

    found = measure_machine(["float32"], 1)

    assert found.read_bytes_s == 4096 / 0.5
    assert found.flop_s == {"float32": 2 * 8**3 / 0.5}


def test_the_processor_has_a_name() -> None:
    assert cpu_name()
