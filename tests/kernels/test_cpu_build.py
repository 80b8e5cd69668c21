"""Building the kernels: cache, races, instruction sets, one OpenMP runtime, no compiler."""

import ctypes
import errno
import os
import pwd
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.build import (
    AVX512,
    GENERIC,
    BuildError,
    InstructionSet,
    build,
    cache_dir,
    detect_instruction_set,
    find_compiler,
)
from noria.kernels.cpu.fallback import TorchKernels
from noria.kernels.cpu.native import Library

TESTS = Path(__file__).parent
FAST = InstructionSet("unoptimized", ("-O0",))


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "noria" / "kernels"


def compiler() -> str:
    path = find_compiler()
    assert path is not None
    return path


@pytest.fixture(scope="module")
def linked(tmp_path_factory) -> Path:
    """What the compiler made of the sources: a library as it was linked."""
    folder = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        built = build(compiler(), FAST)
    return built


COUNTING = """#!/bin/sh
for last; do :; done
case "$*" in
*--version*) exec {compiler} --version;;
*-shared*) echo link >> {log}; exec cp {linked} "$last";;
*) exec touch "$last";;
esac
"""


@pytest.fixture
def counting_compiler(linked, tmp_path) -> tuple[str, Path]:
    """A compiler that notes each link it does, and links what was linked before."""
    log, script = tmp_path / "links", tmp_path / "compiler"
    script.write_text(COUNTING.format(compiler=compiler(), log=log, linked=linked))
    script.chmod(0o755)
    return str(script), log


def test_cache_dir_follows_the_xdg_rules(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_dir() == Path("/somewhere/noria/kernels")
    monkeypatch.setenv("HOME", "/home/user")
    for ignored in ("", "relative/cache", "."):
        monkeypatch.setenv("XDG_CACHE_HOME", ignored)
        assert cache_dir() == Path("/home/user/.cache/noria/kernels")


def test_without_home_the_cache_is_in_the_users_folder_or_nowhere(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert cache_dir() == Path(home) / ".cache" / "noria" / "kernels"

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.warns(RuntimeWarning, match=r"slower: .* no home; set XDG_CACHE_HOME") as warned:
        kernels = CpuKernels()
    assert isinstance(kernels, TorchKernels)
    assert len(warned) == 1


def test_a_library_is_compiled_once_even_by_builders_at_the_same_time(cache, counting_compiler):
    path, log = counting_compiler
    barrier = threading.Barrier(2)

    def build_at_once() -> Path:
        barrier.wait()
        return build(path, FAST)

    with ThreadPoolExecutor(2) as pool:
        first, second = (f.result() for f in [pool.submit(build_at_once) for _ in range(2)])
    num_links = log.read_text().count("link")
    again = build(path, FAST)

    assert first == second == again
    assert log.read_text().count("link") == num_links <= 2
    assert [p.name for p in first.parent.iterdir()] == ["libnoria_cpu.so"]


def test_flags_and_compilers_do_not_share_a_library(cache, counting_compiler, tmp_path):
    path, log = counting_compiler
    other = shutil.copy(path, tmp_path / "other")
    same_flags = build(path, FAST)

    assert build(path, InstructionSet("unoptimized", ("-O0", "-g"))) != same_flags
    assert build(other, FAST) != same_flags
    assert log.read_text().count("link") == 3


def test_a_compiler_that_fails_is_named_with_its_message(cache):
    with pytest.raises(BuildError, match=r"the C\+\+ compiler .* failed: .*no-such-option"):
        build(compiler(), InstructionSet("wrong", ("--no-such-option",)))
    with pytest.raises(BuildError, match="cannot run the C\\+\\+ compiler /nowhere/g"):
        build("/nowhere/g++", GENERIC)
    assert not list(cache.rglob("*.so"))


@pytest.mark.parametrize("place", ["/proc", "file"], ids=["read-only", "not a folder"])
def test_a_cache_that_cannot_be_written_falls_back_with_its_reason(place, tmp_path, monkeypatch):
    """The process may be root, whom permissions do not stop; /proc takes no folders from anyone."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / place))
    reason = rf"slower: built kernels cannot be kept in {tmp_path / place}/.*XDG_CACHE_HOME"

    with pytest.warns(RuntimeWarning, match=reason) as warned:
        kernels = CpuKernels()

    assert isinstance(kernels, TorchKernels)
    assert len(warned) == 1


def test_a_full_cache_is_a_build_error_and_leaves_nothing(cache, monkeypatch):
    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(Path, "write_bytes", full)

    with pytest.raises(BuildError, match=r"cannot be kept in .*: .*No space left on device"):
        build(compiler(), FAST)
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("damage", ["empty", "short", "changed"])
def test_a_damaged_library_is_rebuilt_once(damage, cache, counting_compiler):
    path, log = counting_compiler
    library = build(path, FAST)
    whole = library.read_bytes()
    middle = len(whole) // 2
    contents = {"empty": b"", "short": whole[:middle], "changed": b"x" * middle + whole[middle:]}
    library.write_bytes(contents[damage])

    assert build(path, FAST) == build(path, FAST) == library

    assert log.read_text().count("link") == 2
    assert Library(str(library)).encode([]).commands.shape == (0, 3)


def test_a_library_that_does_not_load_falls_back_with_its_reason(monkeypatch):
    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr(ctypes, "CDLL", refuse)

    with pytest.warns(RuntimeWarning, match="cannot be loaded: .*failed to map segment") as warned:
        kernels = CpuKernels()

    assert isinstance(kernels, TorchKernels)
    assert len(warned) == 1


def test_a_compiler_given_by_path_needs_none_on_path(tmp_path, monkeypatch):
    """Kernels run by the library of their own set, whoever calls them: eager, packing, graphs."""
    CpuKernels()  # in the cache from here on: g++ finds its assembler on PATH
    path = compiler()
    monkeypatch.setenv("PATH", str(tmp_path))

    kernels = CpuKernels(compiler=path)

    linear = kernels.make_linear(torch.eye(8), None, torch.float32)
    x, output = torch.arange(16.0).view(2, 8), torch.zeros(2, 8)
    kernels.compile(linear, [x], [output])()
    assert torch.equal(linear(x), x)
    assert torch.equal(output, x)
    assert kernels.greedy(x).tolist() == [7, 7]


def test_a_compiler_that_cannot_run_falls_back_with_its_reason():
    with pytest.warns(RuntimeWarning, match="several times slower: cannot run the C"):
        kernels = CpuKernels(compiler="/nowhere/g++")

    assert isinstance(kernels, TorchKernels)


def run_python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_one_openmp_runtime_is_mapped():
    """The library's libgomp.so.1 is torch's: two runtimes would fight for the cores."""
    CpuKernels()

    with open("/proc/self/maps") as maps:
        mapped = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line}
    assert len(mapped) == 1


NARROW = """
import sys
sys.path.insert(0, {tests!r})
import torch
from attention_cases import *
from noria.kernels.cpu import CpuKernels
from noria.kernels.cpu.build import detect_instruction_set
from noria.kernels.reference import ReferenceKernels
kernels, reference = CpuKernels(), ReferenceKernels()
requests = [Request(9, 2, 1), Request(0, 3, 2), Request(70, 4, 4)]
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2e-2)):
    for num_inputs in (31, 64):
        x = torch.randn(300, num_inputs).to(dtype)
        weight = (torch.randn(83, num_inputs) / 8).to(dtype)
        linear = kernels.make_linear(weight, None, dtype)
        whole = linear(x)
        expected = reference.make_linear(weight, None, dtype)(x)
        torch.testing.assert_close(whole, expected, rtol=tolerance, atol=tolerance)
        for rows in (1, 2, 3, 5, 8, 11, 129):
            assert same_bits(linear(x[:rows]), whole[:rows]), rows
    for size in (8, 24, 64):
        heads = Heads(k_dim=size, v_dim=size, group=3, dtype=dtype)
        step = make_prefill(requests, heads, Layout(num_rows=12, filler=float("nan")))
        output = step.run(kernels)[0]
        expected = step.run(reference)[0]
        torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
        decoded = make_decode(requests, heads)
        for rows in zip(decoded.request_rows(decoded.run(kernels)[0]), step.request_rows(output)):
            assert same_bits(*rows)
    x, weight = torch.randn(5, 37).to(dtype), torch.rand(37)
    for name, args in (("rms_norm", (x, weight, 1e-5)), ("silu_mul", (x[:, :36] * 9,))):
        results = [getattr(target, name)(*args) for target in (kernels, reference)]
        torch.testing.assert_close(*results, rtol=tolerance, atol=tolerance)
logits = torch.randn(8, 4099) * 3
assert torch.equal(kernels.greedy(logits), reference.greedy(logits))
params = [torch.full((8,), 0.7), torch.full((8,), 50, dtype=torch.int32)]
params += [torch.full((8,), 0.9), torch.full((8,), 1e-3), torch.rand(8)]
assert torch.equal(kernels.sample(logits, *params), reference.sample(logits, *params))
mask = torch.randint(-2**31, 2**31, (8, 129), dtype=torch.int32)
assert torch.equal(kernels.mask_logits(logits, mask), reference.mask_logits(logits, mask))
ids = torch.arange(8, dtype=torch.int32)
tops = [target.top_logprobs(logits, ids, 20) for target in (kernels, reference)]
torch.testing.assert_close(*tops, rtol=1e-6, atol=2e-6)
print(detect_instruction_set().name)
"""


@pytest.mark.parametrize(("capability", "name"), [("avx2", "avx2"), ("default", "generic")])
def test_narrower_instruction_sets_give_right_and_batch_invariant_results(capability, name):
    capabilities = ["DEFAULT", "AVX2", "AVX512"]
    if torch.backends.cpu.get_cpu_capability() not in capabilities[capability == "avx2" :]:
        pytest.skip("this machine does not have it")

    output = run_python(NARROW.format(tests=str(TESTS)), ATEN_CPU_CAPABILITY=capability)

    assert output.split() == [name]


@pytest.mark.skipif(
    detect_instruction_set().name != "avx512_bf16", reason="needs AVX-512 with bf16"
)
def test_avx512_without_bf16_instructions_gives_right_results(monkeypatch):
    """Its bf16 products are exact in fp32: another order of rounding, the same tolerance."""
    code = "import torch; torch.cpu._is_avx512_bf16_supported = lambda: False\n"

    assert run_python(code + NARROW.format(tests=str(TESTS))).split() == [AVX512.name]


def test_sources_are_part_of_the_package():
    """A wheel without them could not build."""
    folder = Path(sys.modules["noria.kernels.cpu.build"].__file__ or "").parent / "csrc"

    assert {"command.h", "linear.cpp", "program.cpp"} <= {p.name for p in folder.iterdir()}
    assert shutil.which(compiler()) == compiler()
