"""Compiled sets of plain bytes, for tests of their files."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path

from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.manifest import MANIFEST
from noria.runtime.compiled_set.writable_set import WritableSet

KEY: Mapping[str, object] = {"architecture": {"num_heads": 4}, "target": "cpu"}
NUM_BLOCKS = (64,)
GRAPHS: Mapping[str, bytes] = {
    "prefill_t128_c256": random.Random(0).randbytes(900),
    "decode_s8_c256": random.Random(1).randbytes(700),
    "sampler_r8_greedy": b'{"format": 1}',
    "copy_blocks_0": b"",
}
FILES: Mapping[str, bytes] = {
    "plan.json": b'{"prefill": [[128, 256]]}\n',
    "config.yaml": b"model: tiny\n",
    "kernels/libnoria_cpu.so": random.Random(2).randbytes(1500),
}
FAILED = "decode_s16_c256"
ERROR = "OperatorError: no such operator\nTraceback (most recent call last):\n  ...\n"


def graph_key(name: str, version: int = 1) -> dict[str, object]:
    return {"kind": name.split("_")[0], "rows": [version, 8]}


def begin(path: Path) -> SetFolder:
    return SetFolder.prepare(path, key=KEY, num_blocks=NUM_BLOCKS)


def add_graph(folder: WritableSet, name: str, data: bytes, version: int = 1) -> None:
    folder.publish(name, data, key=graph_key(name, version), seconds=1.5, peak_bytes=2**20)


def small_set(path: Path) -> SetFolder:
    """Make a set with every kind of file, a failed graph among them."""
    folder = begin(path)
    for name, data in FILES.items():
        folder.publish_file(name, data)
    for name, data in GRAPHS.items():
        add_graph(folder, name, data)
    folder.fail(FAILED, ERROR, key=graph_key(FAILED), seconds=0.5)
    folder.record({"invariance": {"checked": 3}})
    return folder


def contents(path: Path) -> dict[str, bytes]:
    """Return all files below ``path`` but the lock."""
    files = (file for file in sorted(path.rglob("*")) if file.is_file() and file.name != ".lock")
    return {file.relative_to(path).as_posix(): file.read_bytes() for file in files}


def files_of(path: Path) -> dict[str, bytes]:
    """Return the manifest and all files that it lists, whole or not."""
    names = [MANIFEST, *SetFolder.open(path).manifest.all_files]
    return {name: (path / name).read_bytes() for name in names}
