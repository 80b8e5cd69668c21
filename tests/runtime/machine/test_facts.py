"""What is found out about machines that are built in folders, and about this one."""

from __future__ import annotations

import sys

import pytest
from machines import UBUNTU_2404, BuiltMachine, fresh_trn2, laptop, working_trn2

from noria.kernels.cpu import build
from noria.runtime.machine import facts as facts_module
from noria.runtime.machine.facts import find_facts
from noria.runtime.machine.neuron_devices import generation_of
from noria.runtime.machine.processor import instruction_set
from noria.runtime.machine.sources import Sources
from noria.runtime.machine.system import container, distribution
from noria.runtime.machine.variables import HIDDEN, vendor_variables


def test_a_working_instance_is_described(tmp_path):
    machine = working_trn2(tmp_path).devices(16)
    machine.variables["NEURON_RT_LOG_LEVEL"] = "INFO"

    facts = machine.facts()

    assert (facts.processor, facts.instruction_set) == ("Some Processor", "avx512_bf16")
    assert (facts.total_bytes, facts.free_bytes) == (4096 * 1024, 1024 * 1024)
    assert (facts.instance, facts.generation) == ("trn2.3xlarge", "trn2")
    assert facts.devices.files[:3] == ("neuron0", "neuron1", "neuron2")
    assert facts.devices.files[-1] == "neuron15"
    assert (facts.devices.num_known, facts.devices.cores) == (16, "8")
    assert (facts.devices.has_driver, facts.devices.driver_version) == (True, "2.31.7.0")
    assert facts.devices.runtime == "libnrt.so.2.35.30.0"
    assert facts.neuronx_cc == str(machine.root / "bin/neuronx-cc")
    assert facts.variables == {"NEURON_RT_LOG_LEVEL": "INFO"}
    assert facts.container is None


def test_a_machine_that_tells_nothing_is_still_described(tmp_path):
    facts = BuiltMachine(tmp_path, architecture="arm64", system="Darwin").facts()

    assert (facts.processor, facts.instruction_set) == ("arm64", None)
    assert facts.devices.has_driver is None
    assert (facts.devices.files, facts.generation, facts.instance) == ((), None, None)
    assert (facts.container, facts.compiler, facts.packages) == (None, None, {})
    assert facts.total_bytes > 0


def test_a_driver_is_told_from_modules_of_a_similar_name(tmp_path):
    assert fresh_trn2(tmp_path).facts().devices.has_driver is False


def test_the_instance_of_another_vendor_is_none_of_ec2(tmp_path):
    machine = laptop(tmp_path).ec2("trn2.3xlarge")
    machine.file("sys/devices/virtual/dmi/id/sys_vendor", "Some Vendor\n")

    assert machine.facts().instance is None


def test_devices_tell_their_generation_where_the_instance_does_not(tmp_path):
    facts = laptop(tmp_path).driver().devices(1).facts()

    assert (facts.instance, facts.generation) == (None, "trn2")


@pytest.mark.parametrize(
    ("kind", "generation"),
    [
        ("trn2u.48xlarge", "trn2"),
        ("trn1n.32xlarge", "trn1"),
        ("inf2.xlarge", "inf2"),
        ("Trn3", "trn3"),
        ("c7i.large", None),
        (None, None),
    ],
)
def test_generations_of_instance_types(kind, generation):
    assert generation_of(kind) == generation


@pytest.mark.parametrize(
    ("path", "text", "variables", "kind"),
    [
        (".dockerenv", "", {}, "Docker"),
        ("run/.containerenv", "", {}, "Podman"),
        ("proc/1/cgroup", "0::/kubepods/besteffort/pod1\n", {}, "a container"),
        ("proc/1/cgroup", "0::/init.scope\n", {}, None),
        (".dockerenv", "", {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, "Kubernetes"),
        ("proc/1/cgroup", "0::/\n", {"container": "oci"}, "oci"),
    ],
)
def test_containers_are_recognised(tmp_path, path, text, variables, kind):
    machine = BuiltMachine(tmp_path, variables=variables).file(path, text)

    assert container(machine.sources()) == kind


def test_the_distribution_is_read_with_and_without_quotes(tmp_path):
    found = distribution(BuiltMachine(tmp_path).linux(UBUNTU_2404).sources())

    assert (found.identity, found.version, found.codename) == ("ubuntu", "24.04", "noble")
    assert (found.name, found.has_apt) == ("ubuntu linux", True)


@pytest.mark.parametrize(
    ("flags", "capability", "name"),
    [
        ("avx2 fma avx512vl avx512bw avx512dq avx512_bf16", None, "avx512_bf16"),
        ("avx2 fma avx512vl avx512bw avx512dq", None, "avx512"),
        ("avx2 fma avx512vl avx512bw avx512dq", "avx2", "avx2"),
        ("avx2 fma avx512vl avx512bw avx512dq", "default", "generic"),
        ("avx2 fma avx512f", None, "avx2"),
        ("avx2", None, "generic"),
        ("sse2", None, "generic"),
    ],
)
def test_instruction_sets(tmp_path, flags, capability, name):
    variables = {} if capability is None else {"ATEN_CPU_CAPABILITY": capability}
    machine = BuiltMachine(tmp_path, variables=variables)
    machine.file("proc/cpuinfo", f"model name : x\nflags : {flags}\n")

    assert instruction_set(machine.sources()) == name


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_this_machine_has_the_instruction_set_that_kernels_are_built_for():
    assert instruction_set(Sources()) == build.detect_instruction_set().name


def test_the_compiler_of_this_machine_is_the_one_that_builds_kernels():
    assert facts_module.COMPILERS == build.COMPILERS
    assert find_facts(Sources()).compiler == build.find_compiler()


def test_variables_of_others_and_passwords_are_not_told():
    environ = {
        "NEURON_CC_FLAGS": "-O1",
        "TORCH_NEURONX_DEBUG_DIR": "there",
        "NKI_COMPILE_CACHE_URL": "https://me:secret@host/cache",
        "NEURON_RT_SOME_TOKEN": "secret",
        "NEURON_API_KEY": "secret",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "MY_NEURON_THING": "secret",
    }

    assert vendor_variables(environ) == {
        "NEURON_API_KEY": HIDDEN,
        "NEURON_CC_FLAGS": "-O1",
        "NEURON_RT_SOME_TOKEN": HIDDEN,
        "NKI_COMPILE_CACHE_URL": f"https://{HIDDEN}@host/cache",
        "TORCH_NEURONX_DEBUG_DIR": "there",
    }
