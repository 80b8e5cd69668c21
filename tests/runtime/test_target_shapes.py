from __future__ import annotations

import pytest

from noria.kernels.neuron.target import NeuronKernels
from noria.runtime.backends import RUNNABLE, load_kernels
from noria.runtime.settings import NEURON_BACKENDS
from noria.runtime.target_shapes import TargetShapes, target_shapes


@pytest.mark.parametrize("backend", sorted(RUNNABLE))
def test_a_plan_assumes_what_the_kernels_ask_for(backend: str) -> None:
    kernels = NeuronKernels() if backend == "neuron" else load_kernels(backend)

    shapes = target_shapes(backend)

    assert shapes == TargetShapes(kernels.prefill_tile, kernels.fold_blocks)


@pytest.mark.parametrize("backend", NEURON_BACKENDS)
def test_neuron_backends_have_tiles_and_folds_of_128_rows(backend: str) -> None:
    assert target_shapes(backend) == TargetShapes(prefill_tile=128, fold_blocks=128)
