"""dma_copy: who makes the descriptors, priorities and engines, by generation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from nki_rules import draw, loaded, nisa, nl, refused, tile

HWDGE, SWDGE, NONE = nisa.dge_mode.hwdge, nisa.dge_mode.swdge, nisa.dge_mode.none


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("trn1", {"dge_mode": HWDGE}, "hwdge needs trn2"),
        ("trn2", {"priority": 1}, "priority needs trn3"),
        ("trn3", {"priority": 4}, "priority must be 0 to 3"),
        ("trn2", {"engine": nisa.engine.sync}, "for dge_mode.hwdge only"),
        ("trn2", {"dge_mode": HWDGE, "engine": nisa.engine.vector}, "engine.sync or"),
        ("trn2", {"dge_mode": HWDGE, "half": True}, "hwdge cannot convert"),
    ],
)
def test_modes_of_direct_copies(target: str, options: dict[str, Any], problem: str) -> None:
    def kernel(x) -> None:
        dtype = nl.bfloat16 if options.pop("half", False) else nl.float32
        nisa.dma_copy(dst=tile(2, 5, dtype=dtype), src=x, **options)

    refused("dma_copy", problem, kernel, draw(2, 5), target=target)


@pytest.mark.parametrize(
    ("target", "options", "problem"),
    [
        ("trn2", {"dge_mode": HWDGE}, "needs swdge"),
        ("trn2", {"dge_mode": NONE}, "needs swdge"),
        ("trn1", {"dge_mode": SWDGE}, "needs trn2"),
    ],
)
def test_modes_of_gathers(target: str, options: dict[str, Any], problem: str) -> None:
    def kernel(table, index) -> None:
        source = table.ap([[5, 2], [1, 5]], vector_offset=loaded(index))
        nisa.dma_copy(dst=tile(2, 5), src=source, **options)

    refused("dma_copy", problem, kernel, draw(8, 5), np.zeros((2, 1), np.int32), target=target)


def test_descriptors_made_before_the_run_know_no_index() -> None:
    def kernel(x) -> None:
        source = x.ap([[5, 1], [1, 5]], scalar_offset=nisa.register_alloc(0))
        nisa.dma_copy(dst=tile(1, 5), src=source, dge_mode=NONE)

    refused("dma_copy", "takes no run-time index", kernel, draw(2, 5))
