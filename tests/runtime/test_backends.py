from __future__ import annotations

import sys
from importlib import import_module

import pytest

from noria.runtime import backends
from noria.runtime.backends import load_kernels
from noria.runtime.errors import BackendError

install_module = import_module("noria.kernels.nki.simulator.install")


@pytest.mark.parametrize("name", ["cpu", "reference", "neuron-sim"])
def test_backends_that_run_here_give_their_kernels(name):
    assert load_kernels(name).name == name


def test_neuron_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(sys, "path", [])  # where packages are looked for

    with pytest.raises(BackendError, match=r"^backend: neuron: .*torch-neuronx.* not installed"):
        load_kernels("neuron", "trn2")


def test_backends_that_this_version_lacks_are_refused_with_those_that_run(monkeypatch):
    monkeypatch.setattr(backends, "RUNNABLE", {"cpu": None, "reference": None})

    with pytest.raises(BackendError, match=r"backend: neuron cannot run.*cpu, reference"):
        load_kernels("neuron", "trn2")


def test_the_simulator_names_the_extra_that_it_needs(monkeypatch):
    monkeypatch.delitem(sys.modules, "noria.kernels.nki.target", raising=False)
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)

    with pytest.raises(BackendError, match=r"neuron-sim needs ml_dtypes.*noria\[nki\]"):
        load_kernels("neuron-sim")


def test_the_simulator_gives_way_to_a_real_nki(monkeypatch):
    monkeypatch.setattr(install_module, "install", lambda: False)

    with pytest.raises(BackendError, match=r"neuron-sim.*real nki"):
        load_kernels("neuron-sim")


@pytest.mark.parametrize("device", ["trn1", "inf2"])
def test_old_generations_are_refused_with_the_reason_and_what_would_run_them(device):
    with pytest.raises(BackendError, match=rf"target: {device}.*trn2 and trn3 only.*NxD") as caught:
        load_kernels("neuron", device)

    assert str(caught.value).endswith("or here with backend: cpu and no target")
    assert load_kernels("cpu", None).name == "cpu"
