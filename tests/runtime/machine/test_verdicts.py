"""Which backends would run on machines that are built in folders."""

from __future__ import annotations

from typing import get_args

import pytest
from machines import CPU_PACKAGES, UBUNTU_2604, BuiltMachine, laptop, working_trn2

from noria.kernels.neuron.packages import Lack
from noria.runtime.machine.verdicts import verdicts
from noria.runtime.settings import Backend


def test_every_backend_has_a_verdict(tmp_path):
    machine = laptop(tmp_path)

    found = verdicts(machine.facts(), machine.sources(), "trn2")

    assert set(found) == set(get_args(Backend))


def test_a_laptop_without_a_compiler_runs_all_but_neuron(tmp_path):
    machine = laptop(tmp_path)

    cpu = machine.verdict("cpu")

    assert cpu.runs
    assert cpu.how == "plain torch, for want of a C++ compiler"
    assert cpu.advice[0].lines == ("sudo dnf install -y gcc-c++",)
    assert machine.verdict("reference").runs
    assert machine.verdict("neuron-sim").runs
    assert not machine.verdict("neuron").runs


@pytest.mark.parametrize(
    ("release", "line"),
    [
        (UBUNTU_2604, "sudo apt-get install -y g++"),
        ({"ID": "amzn", "ID_LIKE": "fedora"}, "sudo dnf install -y gcc-c++"),
        ({"ID": "arch"}, "install g++ with OpenMP"),
    ],
)
def test_the_compiler_is_installed_as_the_system_does(tmp_path, release, line):
    (advice,) = laptop(tmp_path).linux(release).verdict("cpu").advice

    assert advice.lines == (line,)


@pytest.mark.parametrize("name", ["g++", "c++"])
def test_a_compiler_builds_kernels(tmp_path, name):
    machine = laptop(tmp_path).program(name)

    verdict = machine.verdict("cpu")

    assert verdict.how == f"C++ kernels for avx512_bf16, built by {machine.root}/bin/{name}"
    assert verdict.advice == ()


@pytest.mark.parametrize(
    ("packages", "text"),
    [({}, "torch is not installed"), ({"torch": "2.12.1"}, "torch 2.12.1: 2.13 is needed")],
)
def test_without_its_torch_nothing_runs(tmp_path, packages, text):
    machine = BuiltMachine(tmp_path).linux().program("python").packages(packages)

    for backend in ("cpu", "reference", "neuron-sim"):
        lack = machine.lacks(backend)[0]

        assert lack == Lack(text, ('python -m pip install "torch>=2.13"',))


def test_the_simulator_needs_ml_dtypes(tmp_path):
    machine = BuiltMachine(tmp_path).linux().program("python").packages({"torch": "2.13.0"})

    (lack,) = machine.lacks("neuron-sim")

    assert lack.lines == ('python -m pip install "ml_dtypes>=0.5"',)


def test_the_simulator_gives_way_to_a_real_nki_but_not_to_an_empty_one(tmp_path):
    real, empty = tmp_path / "real", tmp_path / "empty"
    working = working_trn2(real).packages({"ml_dtypes": "0.5.0"})
    other = laptop(empty).packages({"nki": "0.0.1"}, empty=True)

    (lack,) = working.lacks("neuron-sim")

    assert lack.text == "nki 0.7.0 is installed, and the simulator gives way to it"
    assert other.verdict("neuron-sim").runs


def test_the_packages_of_the_cpu_are_those_that_it_needs(tmp_path):
    machine = BuiltMachine(tmp_path).packages(CPU_PACKAGES)

    assert machine.verdict("cpu").runs
    assert "not known" in machine.program("g++").verdict("cpu").how
