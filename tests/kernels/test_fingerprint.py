"""What targets say of their code and of this machine, by which compiled sets are told apart."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.build import InstructionSet, build, detect_instruction_set
from noria.kernels.cpu.fallback import TorchKernels
from noria.kernels.kernel_set import KernelSet
from noria.kernels.nki.target import NkiSimKernels
from noria.kernels.reference import ReferenceKernels
from noria.kernels.source_digest import FOLDER, source_digest

FLAGS = ("-O1", "-mfma")
COMPILER = """
import sys
*args, last = sys.argv[1:]
if last == "--version":
    print(VERSION, "Copyright of somebody", sep="\\n")
else:
    with open(last, "wb") as output:
        output.writelines(open(name, "rb").read() for name in args if name[0] != "-")
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def compiler_of_text(folder: Path, version: str) -> str:
    """A compiler whose libraries are the texts of their sources, one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "g++"
    script.write_text(f"#!{sys.executable} -SE\nVERSION = {version!r}\n{COMPILER}")
    script.chmod(0o755)
    return str(script)


def built_from(compiler: str, flags: tuple[str, ...] = FLAGS) -> dict[str, str]:
    library = build(compiler, InstructionSet("some", flags))
    (text,) = re.findall(rb'R"noria\((.*)\)noria"', library.read_bytes())
    facts: dict[str, str] = json.loads(text)
    return facts


def test_e02_a_library_says_its_compiler_and_flags_and_changing_them_back_says_the_same(tmp_path):
    """E02: compiler version, flags; order and repetition of flags do not matter."""
    old, new = (compiler_of_text(tmp_path / v, f"g++ (Some) {v}") for v in ("12.1", "12.2"))
    first = built_from(old)

    assert first["compiler"] == "g++ (Some) 12.1"
    assert {"-O1", "-mfma", "-fopenmp"} <= set(first["compiler_flags"].split())
    assert built_from(new) == {**first, "compiler": "g++ (Some) 12.2"}
    assert built_from(old, ("-O2", "-mfma")) != first
    assert built_from(old, ("-mfma", "-O1", "-mfma")) == first
    assert built_from(old) == first


def test_e04_a_library_names_no_folder(tmp_path, monkeypatch):
    """E04: neither the compiler's path, nor the cache's, nor that of the sources."""
    here = built_from(compiler_of_text(tmp_path / "here", "g++ 12"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    there = built_from(compiler_of_text(tmp_path / "there", "g++ 12"))

    assert here == there
    assert str(FOLDER) not in str(here)


def test_the_loaded_library_says_the_machines_instruction_set_and_its_own_sources(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME")
    kernels = CpuKernels()
    fingerprint = kernels.fingerprint

    assert list(fingerprint) == [
        "instruction_set",
        "compiler",
        "compiler_flags",
        "library_sources",
        "sources",
        "trace_format",
    ]
    assert fingerprint["instruction_set"] == detect_instruction_set().name
    assert set(detect_instruction_set().flags) <= set(fingerprint["compiler_flags"].split())
    assert kernels.for_tracing().fingerprint == fingerprint


@pytest.mark.parametrize(
    "make", [ReferenceKernels, TorchKernels, NkiSimKernels, lambda: NkiSimKernels("trn3")]
)
def test_every_target_says_its_sources_the_same_each_time(make):
    kernels: KernelSet = make()

    assert re.fullmatch("[0-9a-f]{64}", kernels.fingerprint["sources"])
    assert make().fingerprint == kernels.fingerprint == kernels.for_tracing().fingerprint
    assert all(isinstance(value, str) for value in kernels.fingerprint.values())


def test_targets_and_generations_have_different_fingerprints():
    targets = [ReferenceKernels(), TorchKernels(), NkiSimKernels("trn2"), NkiSimKernels("trn3")]

    assert len({json.dumps(dict(one.fingerprint)) for one in targets}) == len(targets)


def test_a_source_that_changed_moved_or_joined_changes_the_digest(tmp_path):
    def digest_of(change: str) -> str:
        folder = tmp_path / change
        shutil.copytree(FOLDER / "reference", folder / "reference")
        layers = folder / "reference" / "layers.py"
        if change == "changed":
            layers.write_text(layers.read_text() + "#")
        elif change == "moved":
            layers.rename(layers.with_name("lay.py"))
        elif change == "joined":
            layers.with_name("new.py").touch()
        elif change == "unrelated":
            layers.with_name("notes.txt").touch()
        return source_digest("reference/*.py", folder=folder)

    same = source_digest("reference/*.py")

    assert digest_of("copied") == digest_of("unrelated") == same
    assert len({same, digest_of("changed"), digest_of("moved"), digest_of("joined")}) == 4


def test_sources_that_are_not_there_are_no_digest_of_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no cpu/\*\.py"):
        source_digest("cpu/*.py", folder=tmp_path)
