"""One file to send when something fails: facts and logs, no prompts, no weights, no passwords.

Of the variables only the vendor's are in it, of running processes no command line.
"""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import distributions
from pathlib import Path

from ..compiled_set.staging import appear, stage, writing
from .sources import Sources
from .variables import without_passwords

MANIFEST = "manifest.json"
COMPILER_LOG = "log-neuron-cc.txt"
_PACKAGE_WORDS = ("neuron", "nki", "torch", "numpy", "noria", "ml-dtypes", "ml_dtypes")
_LOG_LINES = 400
_PROGRAM_S = 20
_HIDDEN_KEYS = ("command", "cmdline")


def write_bundle(path: Path, files: Mapping[str, str]) -> None:
    """Write texts as a tar archive, compressed; the same texts give the same bytes.

    Raises:
        SetError: it cannot be written; what was at ``path`` stays.
    """
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name, text in files.items():
            data = text.encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    with writing(path):
        appear(stage(path, gzip.compress(content.getvalue(), mtime=0), "report"), path, "report")


def collected(sources: Sources, work: Path, compiled: Path | None = None) -> dict[str, str]:
    """Return texts about a machine, by the names of the files that they become.

    Args:
        sources: the machine.
        work: folder in which a compilation failed: the vendor's compiler leaves its log there.
        compiled: folder of a compiled set.
    """
    found = {
        "packages.txt": "\n".join(_packages(sources)),
        "modinfo.txt": _output(sources, "modinfo", "neuron"),
        "dmesg.txt": _about_neuron(_output(sources, "dmesg")),
        "neuron-ls.json": _without_commands(_output(sources, "neuron-ls", "-j")),
        COMPILER_LOG: _last_lines(work / COMPILER_LOG),
        MANIFEST: _read(compiled / MANIFEST) if compiled else None,
    }
    return {name: without_passwords(text) for name, text in found.items() if text}


def _packages(sources: Sources) -> Iterator[str]:
    folders = sources.package_folders
    found = distributions() if folders is None else distributions(path=list(folders))
    names = {(str(one.name).lower(), one.version) for one in found}
    for name, version in sorted(names):
        if any(word in name for word in _PACKAGE_WORDS):
            yield f"{name}=={version}"


def _output(sources: Sources, program: str, *arguments: str) -> str | None:
    """Return what a program that only reads prints; None: it is not there, or fails."""
    path = sources.which(program)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROGRAM_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program}: {type(error).__name__}"
    text = done.stdout.decode(errors="replace")
    return text if done.returncode == 0 else f"{program}: exit status {done.returncode}"


def _about_neuron(text: str | None) -> str | None:
    if text is None:
        return None
    lines = [line for line in text.splitlines() if "neuron" in line.lower() or "dmesg:" in line]
    return "\n".join(lines[-_LOG_LINES:])


def _without_commands(text: str | None) -> str | None:
    """Return JSON without the command lines in it, which may hold anything."""
    if text is None:
        return None
    try:
        return json.dumps(_stripped(json.loads(text)), indent=2)
    except ValueError:
        return "neuron-ls: not JSON, left out"


def _stripped(value: object) -> object:
    if isinstance(value, Mapping):
        return {k: _stripped(v) for k, v in value.items() if k.lower() not in _HIDDEN_KEYS}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_stripped(one) for one in value]
    return value


def _last_lines(path: Path) -> str | None:
    text = _read(path)
    return None if text is None else "\n".join(text.splitlines()[-_LOG_LINES:])


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
