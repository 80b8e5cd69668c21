"""Builds the C++ kernels once per compiler and instruction set, into the user's cache.

Owns the compiler's command line, the cache folder and the choice of instruction set. A library
in the cache ends with the digest of the rest: loading one that a full disk or a crash cut short
could end the process, so what does not match is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import torch

COMPILERS = ("g++", "c++")
INSTALL = "install g++ with OpenMP (Debian, Ubuntu: apt install g++)"
BUILT_FROM = "noria_built_from"
"""Function of a library that returns what it was built from: a JSON object of strings."""
_LIBRARY = "libnoria_cpu.so"
_DIGEST_BYTES = hashlib.sha256().digest_size
_FLAGS = ("-O3", "-fopenmp", "-fPIC", "-std=c++17", "-ffp-contract=fast", "-Wno-psabi")
_AVX2 = ("-mavx2", "-mfma", "-mf16c", "-mbmi2")
_AVX512 = (
    *_AVX2,
    *("-mavx512f", "-mavx512bw", "-mavx512cd", "-mavx512dq", "-mavx512vl"),
    "-mprefer-vector-width=512",
)


class BuildError(RuntimeError):
    """The kernels cannot be built or kept here; the text says why, and what would help."""


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Vector instructions that kernels may use, and the compiler flags that allow them."""

    name: str
    flags: tuple[str, ...]


GENERIC = InstructionSet("generic", ())
AVX2 = InstructionSet("avx2", _AVX2)
AVX512 = InstructionSet("avx512", _AVX512)
AVX512_BF16 = InstructionSet("avx512_bf16", (*_AVX512, "-mavx512bf16"))


def detect_instruction_set() -> InstructionSet:
    """Return the widest set of this machine, within what ATEN_CPU_CAPABILITY allows torch."""
    capability = torch.backends.cpu.get_cpu_capability()
    if capability == "AVX512":
        has_bf16 = torch.cpu._is_avx512_bf16_supported()
        return AVX512_BF16 if has_bf16 else AVX512
    return AVX2 if capability == "AVX2" else GENERIC


def find_compiler() -> str | None:
    """Return the path of the first known C++ compiler on PATH."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def build(compiler: str, isa: InstructionSet) -> Path:
    """Return the library for this compiler and instruction set, compiling it at most once.

    Several processes may build at the same time: each compiles into a folder of its own, and
    renames the finished library into place.

    Raises:
        BuildError: the compiler failed (the text holds its first message), or the cache cannot
            be read or written.
    """
    version = _run([compiler, "--version"])
    sources = _sources()
    sources["built_from.cpp"] = _built_from(version, isa, sources)
    folder = cache_dir() / _key(compiler, version, isa, sources)
    library = folder / _LIBRARY
    try:
        if not _is_whole(library):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder) as work:
                built = _compile(compiler, isa, sources, Path(work))
                _append_digest(built)
                os.replace(built, library)
    except OSError as error:
        raise BuildError(
            f"built kernels cannot be kept in {folder}: {error}; XDG_CACHE_HOME chooses another "
            "place"
        ) from error
    return library


def cache_dir() -> Path:
    """Return where built kernels are kept: ``$XDG_CACHE_HOME`` or ~/.cache, then noria/kernels.

    A relative ``XDG_CACHE_HOME`` counts as unset, as the XDG Base Directory Specification has it.

    Raises:
        BuildError: there is no home folder either.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME", ""))
    if not root.is_absolute():
        root = Path(os.path.expanduser("~")) / ".cache"
    if not root.is_absolute():
        raise BuildError(
            "there is no folder to keep built kernels in: this user has no home; set "
            "XDG_CACHE_HOME to the absolute path of a folder that can be written"
        )
    return root / "noria" / "kernels"


def _is_whole(library: Path) -> bool:
    """Return whether the file is there and ends with the digest of what comes before."""
    try:
        content = library.read_bytes()
    except FileNotFoundError:
        return False
    return content[-_DIGEST_BYTES:] == hashlib.sha256(content[:-_DIGEST_BYTES]).digest()


def _append_digest(library: Path) -> None:
    content = library.read_bytes()
    library.write_bytes(content + hashlib.sha256(content).digest())


def _sources() -> dict[str, bytes]:
    folder = resources.files(__package__).joinpath("csrc")
    names = sorted(item.name for item in folder.iterdir() if item.name.endswith((".cpp", ".h")))
    return {name: folder.joinpath(name).read_bytes() for name in names}


def _built_from(version: str, isa: InstructionSet, sources: dict[str, bytes]) -> bytes:
    """Return C++ by which a library says what it was built from, wherever it was copied to.

    No path is in it, and the order of flags does not count.
    """
    facts = {
        "compiler": " ".join(version.partition("\n")[0].split()),
        "compiler_flags": " ".join(sorted({*_FLAGS, *isa.flags})),
        "library_sources": _sources_digest(sources),
    }
    text = f'extern "C" const char* {BUILT_FROM}() {{ return R"noria({json.dumps(facts)})noria"; }}'
    return f"{text}\n".encode()


def _sources_digest(sources: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for name, text in sources.items():
        digest.update(f"{name}\0{len(text)}\0".encode() + text)
    return digest.hexdigest()


def _key(compiler: str, version: str, isa: InstructionSet, sources: dict[str, bytes]) -> str:
    parts = (compiler, version, isa, _FLAGS, _sources_digest(sources))
    return f"{isa.name}-{hashlib.sha256(repr(parts).encode()).hexdigest()[:20]}"


def _compile(compiler: str, isa: InstructionSet, sources: dict[str, bytes], work: Path) -> Path:
    for name, text in sources.items():
        (work / name).write_bytes(text)
    units = [work / name for name in sources if name.endswith(".cpp")]
    command = [compiler, *_FLAGS, *isa.flags]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda unit: _run([*command, "-c", f"{unit}", "-o", f"{unit}.o"]), units))
    library = work / _LIBRARY
    _run([*command, "-shared", *(f"{unit}.o" for unit in units), "-o", str(library)])
    return library


def _run(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildError(f"cannot run the C++ compiler {command[0]}: {error}; {INSTALL}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise BuildError(f"the C++ compiler {command[0]} failed: {lines[0].strip()}; {INSTALL}")
    return done.stdout
