"""What each backend asks of shapes, known without loading it: planning needs no device."""

from __future__ import annotations

from dataclasses import dataclass

from .config_rules import NEURON_TILE
from .settings import NEURON_BACKENDS


@dataclass(frozen=True, slots=True)
class TargetShapes:
    """Alignment of a target's graphs, named as in its KernelSet."""

    prefill_tile: int = 1
    fold_blocks: int = 1


def target_shapes(backend: str) -> TargetShapes:
    """Return the alignment of a backend: tiles of 128 rows on NKI, none elsewhere."""
    if backend in NEURON_BACKENDS:
        return TargetShapes(prefill_tile=NEURON_TILE, fold_blocks=NEURON_TILE)
    return TargetShapes()
