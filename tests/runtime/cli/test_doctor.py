"""`noria doctor` on machines that are built in folders, and on this one."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from machines import BuiltMachine, fresh_trn2, laptop, working_trn2

from noria.runtime.cli import main
from noria.runtime.machine import verdicts as verdicts_module

NEURON = "model: x\nbackend: neuron\nmax_model_len: 128\nmax_num_batched_tokens: 128\n"
ALLOWED = {
    *("report.txt", "report.json", "settings.json", "packages.txt", "modinfo.txt", "dmesg.txt"),
    *("neuron-ls.json", "log-neuron-cc.txt", "manifest.json"),
}


def doctor(machine: BuiltMachine, *arguments: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, arguments)], obj=machine.sources())


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "neuron.yaml"
    file.write_text(NEURON)
    return file


def test_without_a_configuration_the_cpu_decides_and_all_is_shown(tmp_path):
    result = doctor(laptop(tmp_path))

    assert result.exit_code == 0
    assert result.stdout.endswith("\nbackend: cpu would run here\n")
    assert "Some Processor, avx512_bf16" in result.stdout
    assert "Missing for backend: neuron, in this order:\n  1. no Neuron device" in result.stdout
    assert "Better for backend: cpu:\n  1. no C++ compiler" in result.stdout


def test_a_machine_on_which_not_even_the_cpu_runs_fails(tmp_path):
    result = doctor(BuiltMachine(tmp_path).linux())

    assert result.exit_code == 1
    assert result.stdout.endswith("\nbackend: cpu would not run here\n")
    assert "Missing for backend: cpu, in this order:\n  1. torch is not installed" in result.stdout


def test_the_backend_of_a_configuration_decides(tmp_path, config):
    result = doctor(fresh_trn2(tmp_path), config)

    assert result.exit_code == 1
    assert result.stdout.endswith("\nbackend: neuron would not run here\n")
    assert "1. the driver is not installed\n       curl -fsSL https://apt.repos" in result.stdout
    assert "Better for backend: cpu" not in result.stdout


def test_where_all_is_there_the_backend_would_run(tmp_path, config, monkeypatch):
    monkeypatch.setattr(verdicts_module, "RUNNABLE", {"neuron": None})

    result = doctor(working_trn2(tmp_path).devices(16), config)

    assert result.exit_code == 0
    assert "loaded, 2.31.7.0" in result.stdout
    assert "16: neuron0 to neuron15, 8 cores each" in result.stdout
    assert result.stdout.endswith("\nbackend: neuron would run here\n")


def test_the_target_of_a_configuration_counts(tmp_path, config):
    config.write_text(f"{NEURON}target: trn3\n")

    result = doctor(working_trn2(tmp_path), config)

    assert result.exit_code == 1
    assert "1. target: trn3, and the devices here are trn2" in result.stdout


def test_without_one_the_devices_say_the_target(tmp_path):
    result = doctor(working_trn2(tmp_path).ec2("trn3.48xlarge"), "--json")

    assert json.loads(result.stdout)["target"] == "trn3"


def test_empty_and_old_packages_are_marked(tmp_path):
    machine = working_trn2(tmp_path).packages({"nki": "0.0.1"}, empty=True)
    machine.packages({"torch-neuronx": "2.9.0.2.15"})

    lines = [line.split(maxsplit=2) for line in doctor(machine).stdout.splitlines()]

    assert ["nki", "0.0.1", "empty: not AWS's"] in lines
    assert ["torch-neuronx", "2.9.0.2.15", "XLA-based: not usable"] in lines


def test_json_has_all_that_the_text_has(tmp_path, config):
    machine = fresh_trn2(tmp_path)

    result = doctor(machine, config, "--json")

    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["backend"], found["target"], found["runs"]) == ("neuron", "trn2", False)
    assert found["machine"]["instance"] == "trn2.3xlarge"
    lacks = found["backends"]["neuron"]["lacks"]
    assert [one["text"] for one in lacks] == [one.text for one in machine.lacks()]
    assert found["backends"]["reference"]["runs"] is True


def test_a_wrong_configuration_is_a_mistake(tmp_path, config):
    config.write_text("model: x\nbackend: cuda\n")

    result = doctor(laptop(tmp_path), config)

    assert result.exit_code == 2
    assert result.stdout == ""
    assert "backend: is 'cuda'" in result.stderr


def test_the_bundle_holds_what_is_needed_and_nothing_private(tmp_path, config, monkeypatch):
    machine = working_trn2(tmp_path)
    machine.variables |= {"NEURON_CC_FLAGS": "-O1", "AWS_SECRET_ACCESS_KEY": "private"}
    listed = '[{"neuron_device": 0, "neuron_processes": [{"pid": 7, "command": "x --private"}]}]'
    machine.program("neuron-ls", f"[ $1 = -j ] && echo '{listed}'")
    machine.program("modinfo", "[ $1 = neuron ] && echo version: 2.31.7.0")
    machine.program("dmesg", "echo neuron: loaded; echo usb: private")
    (tmp_path / "set").mkdir()
    (tmp_path / "set/manifest.json").write_text('{"graphs": {}}')
    (tmp_path / "set/other.json").write_text("private")
    config.write_text(f"{NEURON}compiled: set\n# private\n")
    (tmp_path / "log-neuron-cc.txt").write_text("fetched https://me:private@host/x\nNCC_X1\n")
    (tmp_path / "prompts.txt").write_text("private")
    monkeypatch.chdir(tmp_path)

    result = doctor(machine, config, "--bundle", "out.tar.gz")

    files = members(tmp_path / "out.tar.gz")
    assert set(files) == ALLOWED
    assert [name for name, text in files.items() if "private" in text] == []
    assert result.stderr.startswith("out.tar.gz: report.txt, report.json, settings.json")
    assert files["report.txt"] + "\n" == result.stdout
    assert json.loads(files["report.json"])["machine"]["variables"] == {"NEURON_CC_FLAGS": "-O1"}
    assert json.loads(files["settings.json"])["backend"] == "neuron"
    assert "torch-neuronx==2.13.3.0.1234" in files["packages.txt"].splitlines()
    assert files["modinfo.txt"] == "version: 2.31.7.0\n"
    assert files["dmesg.txt"] == "neuron: loaded"
    assert json.loads(files["neuron-ls.json"]) == [
        {"neuron_device": 0, "neuron_processes": [{"pid": 7}]}
    ]
    assert "NCC_X1" in files["log-neuron-cc.txt"]


def test_programs_that_fail_say_so_in_the_bundle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    machine = laptop(tmp_path).program("neuron-ls", "echo private").program("modinfo", "exit 1")
    machine.program("dmesg", "echo 'neuron: private'; exit 1")

    doctor(machine, "--bundle", "out.tar.gz")

    files = members(tmp_path / "out.tar.gz")
    assert files["neuron-ls.json"] == "neuron-ls: not JSON, left out"
    assert files["modinfo.txt"] == "modinfo: exit status 1"
    assert files["dmesg.txt"] == "dmesg: exit status 1"


def test_the_same_machine_gives_the_same_bundle(tmp_path):
    first, second = tmp_path / "1.tar.gz", tmp_path / "2.tar.gz"
    for file in (first, second):
        doctor(laptop(tmp_path / "machine"), "--bundle", file)

    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == bytes(4), "the point in time at which it was written"


def test_a_bundle_that_cannot_be_written_is_a_mistake(tmp_path):
    result = doctor(laptop(tmp_path), "--bundle", tmp_path / "none" / "out.tar.gz")

    assert result.exit_code == 2
    assert "cannot be written" in result.stderr


def test_this_machine_is_described_without_torch_and_without_the_vendor(tmp_path):
    """Poisoned modules stand where torch and the vendor's packages would be."""
    for name in ("torch", "torch_neuronx", "neuronxcc", "nki", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"raise SystemExit('{name} was imported')\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from noria.runtime.cli import main\n"
        "main(['doctor'])\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.endswith("\nbackend: cpu would run here\n")


def members(path: Path) -> dict[str, str]:
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            assert (member.isreg(), member.uid, member.mtime, member.uname) == (True, 0, 0, "")
            file = archive.extractfile(member)
            assert file is not None
            found[member.name] = file.read().decode()
    return found
