from __future__ import annotations

import pytest

from noria.runtime.backends import load_kernels
from noria.runtime.errors import BackendError


@pytest.mark.parametrize("name", ["cpu", "reference"])
def test_backends_that_run_here_give_their_kernels(name):
    assert load_kernels(name).name == name


@pytest.mark.parametrize("name", ["neuron", "neuron-sim"])
def test_other_backends_are_refused_with_those_that_run(name):
    with pytest.raises(BackendError, match=rf"backend: {name} cannot run.*cpu, reference"):
        load_kernels(name, "trn2")


@pytest.mark.parametrize("device", ["trn1", "inf2"])
def test_old_generations_are_refused_with_the_reason_and_what_would_run_them(device):
    with pytest.raises(BackendError, match=rf"target: {device}.*trn2 and trn3 only.*NxD"):
        load_kernels("neuron", device)
