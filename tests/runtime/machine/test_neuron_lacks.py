"""What `backend: neuron` lacks on many machines, in which order, and what to run next."""

from __future__ import annotations

from pathlib import Path

import pytest
from installed_packages import ALL_REAL
from machines import DLAMI, UBUNTU_2404, BuiltMachine, fresh_trn2, laptop, working_trn2

from noria.kernels.neuron.environment import CacheFolders, needed
from noria.kernels.neuron.packages import Lack, install_line
from noria.runtime.machine import verdicts as verdicts_module
from noria.runtime.machine.variables import contradictions


@pytest.fixture(autouse=True)
def neuron_runs_in_this_version(monkeypatch):
    monkeypatch.setattr(verdicts_module, "RUNNABLE", {"neuron": None})


def test_a_working_instance_lacks_nothing(tmp_path):
    verdict = working_trn2(tmp_path).verdict("neuron")

    assert verdict.lacks == ()
    assert verdict.runs
    assert verdict.advice == ()
    assert verdict.how.startswith("1 Neuron devices of trn2")


def test_a_version_of_noria_without_the_backend_says_so_last(tmp_path, monkeypatch):
    monkeypatch.setattr(verdicts_module, "RUNNABLE", {})

    (lack,) = working_trn2(tmp_path).lacks()

    assert "this version of Noria" in lack.text


def test_a_fresh_instance_gets_driver_then_packages(tmp_path):
    driver, packages = fresh_trn2(tmp_path).lacks()

    assert driver.text == "the driver is not installed"
    assert driver.lines == (
        "curl -fsSL https://apt.repos.neuron.amazonaws.com/GPG-PUB-KEY-AMAZON-AWS-NEURON.PUB | "
        "sudo gpg --dearmor -o /usr/share/keyrings/neuron-archive-keyring.gpg",
        'echo "deb [signed-by=/usr/share/keyrings/neuron-archive-keyring.gpg] '
        'https://apt.repos.neuron.amazonaws.com resolute main" | '
        "sudo tee /etc/apt/sources.list.d/neuron.list",
        "sudo apt-get update && sudo apt-get install -y linux-headers-$(uname -r) aws-neuronx-dkms "
        "aws-neuronx-runtime-lib aws-neuronx-collectives aws-neuronx-tools",
    )
    assert packages.text.startswith("torch-neuronx, neuronx-cc and nki of AWS's")
    assert packages.lines == (install_line("2.13"),)


def test_a_repository_that_is_there_is_not_set_up_again(tmp_path):
    machine = fresh_trn2(tmp_path).file("etc/apt/sources.list.d/neuron.list")

    (line,) = machine.lacks()[0].lines

    assert "aws-neuronx-dkms" in line


def test_a_driver_that_is_installed_is_loaded(tmp_path):
    machine = fresh_trn2(tmp_path).file("usr/src/aws-neuronx-2.31.7.0/dkms.conf")

    assert machine.lacks()[0] == Lack(
        "the driver is installed, but its module is not loaded", ("sudo modprobe neuron",)
    )


def test_a_driver_without_devices_is_asked_why(tmp_path):
    lack = fresh_trn2(tmp_path).driver().lacks()[0]

    assert "no device file" in lack.text
    assert lack.lines == ("sudo dmesg | grep -i neuron",)


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({}, "docker run --device=/dev/neuron0 "),
        ({"KUBERNETES_SERVICE_HOST": "x"}, "resources: {limits: {aws.amazon.com/neuron: 1}}"),
    ],
)
def test_a_container_without_devices_is_given_them(tmp_path, variables, line):
    machine = fresh_trn2(tmp_path).driver().neuron_packages().file(".dockerenv")
    machine.variables |= variables

    (lack,) = machine.lacks()

    assert lack.text.endswith("was given no device file /dev/neuron*")
    assert lack.lines[0].startswith(line)


def test_devices_with_gaps_between_their_numbers_are_refused(tmp_path):
    machine = working_trn2(tmp_path).devices(4)
    (machine.root / "dev/neuron2").unlink()

    (lack,) = machine.lacks()

    assert lack.text.startswith("device files are neuron0, neuron1, neuron3: ")


def test_devices_may_begin_at_any_number(tmp_path):
    machine = working_trn2(tmp_path).devices(4)
    (machine.root / "dev/neuron0").unlink()

    assert machine.lacks() == []


def test_a_container_is_not_told_to_install_the_driver(tmp_path):
    lack = fresh_trn2(tmp_path).neuron_packages().file(".dockerenv").lacks()[0]

    assert "the driver belongs on its host" in lack.text
    assert "apt-get" not in lack.lines[0]


def test_empty_packages_are_uninstalled_before_others_are_installed(tmp_path):
    versions = {"torch-neuronx": "1.0", "neuronx-cc": "1.0.post1", "nki": "0.0.1"}
    machine = working_trn2(tmp_path).packages(versions, empty=True)

    uninstall, reinstall = machine.lacks()

    assert uninstall.lines == ("python -m pip uninstall -y torch-neuronx neuronx-cc nki",)
    assert reinstall.lines == (install_line(),)


@pytest.mark.parametrize("kind", ["trn1.32xlarge", "trn1n.32xlarge", "inf2.xlarge"])
def test_nothing_is_installed_on_old_instances(tmp_path, kind):
    (lack,) = fresh_trn2(tmp_path).ec2(kind).lacks()

    assert lack.text.startswith(f"{kind}: native torch-neuronx supports trn2 and trn3 only")
    assert "trn2.3xlarge" in lack.lines[0]


@pytest.mark.parametrize("target", ["trn1", "inf2"])
def test_old_targets_are_refused_wherever(tmp_path, target):
    machine = working_trn2(tmp_path)

    for backend in ("neuron", "neuron-sim"):
        lack = machine.lacks(backend, target)[0]

        assert lack.text.startswith(f"target: {target}: native torch-neuronx supports")
        assert "set target: trn2" in lack.lines[0]


def test_another_target_than_the_devices_is_refused(tmp_path):
    (lack,) = working_trn2(tmp_path).lacks(target="trn3")

    assert lack == Lack(
        "target: trn3, and the devices here are trn2", ("set target: trn2 in the configuration",)
    )


def test_an_instance_without_devices_is_left(tmp_path):
    (lack,) = fresh_trn2(tmp_path).ec2("c7i.large").lacks()

    assert lack.text == "c7i.large has no Neuron device of trn2 or trn3"


@pytest.mark.parametrize(("system", "architecture"), [("Darwin", "x86_64"), ("Linux", "aarch64")])
def test_other_systems_have_no_packages_of_the_vendor(tmp_path, system, architecture):
    machine = laptop(tmp_path)
    machine.system, machine.architecture = system, architecture

    (lack,) = machine.lacks()

    assert lack.text.startswith(f"{system} on {architecture}: ")


def test_a_laptop_lacks_devices_system_and_packages_but_no_driver(tmp_path):
    devices, system, packages = laptop(tmp_path).lacks()

    assert devices.text.startswith("no Neuron device")
    assert system.text.startswith("fedora linux: wheels of torch-neuronx")
    assert "Ubuntu 26.04" in system.lines[0]
    assert packages.lines == (install_line(),)
    assert laptop(tmp_path).verdict("neuron").advice == ()


def test_the_machine_image_of_aws_has_what_its_system_has_no_wheels_for(tmp_path):
    machine = fresh_trn2(tmp_path).linux(UBUNTU_2404).driver().devices(1)
    machine.file(f"{DLAMI}/bin/activate")

    (lack,) = machine.lacks()

    assert lack.text.startswith("ubuntu linux: wheels")
    assert lack.lines[0].startswith(f". /{DLAMI}/bin/activate && python -m pip install -e .")


def test_in_the_environment_of_the_machine_image_nothing_is_missing_but_another_family(tmp_path):
    machine = (
        BuiltMachine(tmp_path)
        .linux(UBUNTU_2404)
        .ec2("trn2.48xlarge")
        .driver()
        .devices(16)
        .runtime()
    )
    family = {"torch": "2.14.0+cpu", "torch-neuronx": "2.14.3.0.1"}
    machine.packages(ALL_REAL | family).program("neuronx-cc").file(f"{DLAMI}/bin/activate")

    verdict = machine.verdict("neuron")

    assert verdict.lacks == ()
    assert verdict.advice[0].text == "torch-neuronx 2.14.3.0.1: Noria is written for 2.13"


def test_a_container_of_another_system_is_built_from_the_right_one(tmp_path):
    machine = fresh_trn2(tmp_path).linux(UBUNTU_2404).driver().devices(1).file(".dockerenv")

    assert machine.lacks()[0].lines == ("build the image FROM ubuntu:26.04",)


def test_another_python_comes_before_the_packages(tmp_path):
    machine = fresh_trn2(tmp_path).driver().devices(1).program("python3.14")
    machine.python = (3, 11)

    environment, packages = machine.lacks()

    assert environment.text == "Python 3.11: torch-neuronx is for 3.12, 3.13 and 3.14 only"
    assert environment.lines[0].startswith("python3.14 -m venv ")
    assert packages.lines[0] == install_line()


def test_the_compiler_is_put_on_path(tmp_path):
    machine = working_trn2(tmp_path)
    (machine.root / "bin/neuronx-cc").unlink()

    (lack,) = machine.lacks()

    assert lack == Lack("neuronx-cc is not on PATH", (f'export PATH="{machine.root}/bin:$PATH"',))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NEURON_LOGICAL_NC_CONFIG", "2"),
        ("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3"),
        ("TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION", "0"),
        ("TORCH_NEURONX_NEFF_CACHE_DIR", "somewhere"),
    ],
)
def test_variables_that_contradict_are_unset(tmp_path, name, value):
    machine = working_trn2(tmp_path)
    machine.variables[name] = value

    (lack,) = machine.lacks()

    assert lack.text.startswith(f"{name} is {value}, and Noria sets it to ")
    assert lack.lines == (f"unset {name}",)


def test_flags_of_the_compiler_that_contradict_are_named(tmp_path):
    machine = working_trn2(tmp_path)
    machine.variables |= {"NEURON_CC_FLAGS": "-O1 --lnc=2", "NEURON_LOGICAL_NC_CONFIG": "2"}

    variable, flags = machine.lacks()

    assert variable.lines == ("unset NEURON_LOGICAL_NC_CONFIG",)
    assert flags.text == "NEURON_CC_FLAGS=-O1 --lnc=2 is set, but --lnc=1 is needed; take it out"


@pytest.mark.parametrize("target", ["trn2", "trn3"])
def test_all_variables_that_are_needed_may_be_set_and_looking_sets_none(target):
    folders = CacheFolders(Path())
    environ = {k: v for k, v in needed(target, folders).items() if k not in folders.variables}
    before = dict(environ)

    assert list(contradictions(environ, target)) == []
    assert environ == before


def test_variables_that_agree_are_left(tmp_path):
    machine = working_trn2(tmp_path)
    machine.variables |= {
        "NEURON_LOGICAL_NC_CONFIG": "1",
        "NEURON_PLATFORM_TARGET_OVERRIDE": "trn2",
        "NEURON_RT_LOG_LEVEL": "INFO",
    }

    assert machine.lacks() == []


def test_another_python_than_the_one_on_path_is_named(tmp_path):
    machine = fresh_trn2(tmp_path).driver().devices(1)
    (machine.root / "bin/python").unlink()

    assert machine.lacks()[0].lines == (install_line("2.13", f"{machine.root}/bin/python"),)


def test_an_old_driver_and_a_runtime_that_is_not_found_are_advice(tmp_path):
    machine = BuiltMachine(tmp_path).linux().ec2("trn2.3xlarge").driver("2.21.0").devices(1)
    machine.neuron_packages().file("etc/apt/sources.list.d/neuron.list").file(".dockerenv")

    verdict = machine.verdict("neuron")

    driver, runtime = verdict.advice
    assert verdict.lacks == ()
    assert driver.text == "the host's driver 2.21.0 is older than that of SDK 2.33"
    assert "libnrt.so is not in" in runtime.text
    assert runtime.lines == (
        "sudo apt-get update && sudo apt-get install -y aws-neuronx-runtime-lib "
        "aws-neuronx-collectives aws-neuronx-tools",
    )


def test_another_system_is_told_the_names_of_the_packages(tmp_path):
    machine = fresh_trn2(tmp_path).linux({"ID": "amzn", "ID_LIKE": "fedora"})

    (line,) = machine.lacks()[0].lines

    assert line.startswith("install aws-neuronx-dkms, aws-neuronx-runtime-lib, ")
    assert "apt" not in line
