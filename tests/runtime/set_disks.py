"""What a writer meets on a full and on a read-only disk; prints it as JSON.

    unshare --mount --map-root-user python set_disks.py FOLDER full|read_only

The disk is a small tmpfs in FOLDER, in a mount namespace of this process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from small_sets import GRAPHS, KEY, NUM_BLOCKS, add_graph, begin, contents, small_set

from noria.runtime.compiled_set.bundle import read_bundle, write_bundle
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.errors import SetError

SIZE = 256 * 2**10
UNSHARE = ("unshare", "--mount", "--map-root-user")


@cache
def may_mount() -> bool:
    """Tell whether this user may mount in a namespace of their own."""
    if shutil.which("unshare") is None:
        return False
    probe = [*UNSHARE, "mount", "-t", "tmpfs", "none", "/tmp"]
    return subprocess.run(probe, capture_output=True, timeout=600).returncode == 0


def mount(*options: str) -> None:
    subprocess.run(["mount", *options], check=True, capture_output=True)


def refusal(change: Callable[[], object]) -> str:
    """Return the error of a change."""
    try:
        change()
    except SetError as error:
        return str(error)
    return "no error"


def full(disk: Path) -> dict[str, object]:
    """Fill the disk: by graphs until one does not fit, then by a file until nothing does."""
    folder = small_set(disk / "set")
    write_bundle(folder, disk / "set.tar")
    published = []
    for size in (2**14, 2**12, 1):
        while (text := try_graph(folder, f"graph_{len(published)}", bytes(size))) == "no error":
            published.append(size)
        assert text.endswith("No space left on device"), text
    fill(disk / "ballast")
    before = contents(disk / "set")
    refusals = {
        refusal(lambda: folder.publish_file("plan.json", bytes(2**14))),
        refusal(lambda: add_graph(folder, next(iter(GRAPHS)), bytes(2**14), version=2)),
        refusal(lambda: begin(disk / "other")),
        refusal(lambda: read_bundle(disk / "set.tar", disk / "unpacked")),
        refusal(lambda: write_bundle(folder, disk / "again.tar")),
    }
    found = SetFolder.open(disk / "set")
    result = {
        "refusals": sorted({text.rsplit(": ", 1)[-1] for text in refusals}),
        "is_as_before": contents(disk / "set") == before,
        "problems": found.verify(),
        "num_read": sum(found.read(name) is not None for name in published_names(published)),
        "num_published": len(published),
        "others": sorted(path.name for path in disk.iterdir() if path.name != "other"),
    }
    (disk / "ballast").unlink()
    (disk / "set.tar").unlink()
    add_graph(folder, "graph_after", b"fits again")
    return {**result, "after": [*SetFolder.open(disk / "set").verify(), *leftovers(disk)]}


def try_graph(folder: SetFolder, name: str, data: bytes) -> str:
    return refusal(lambda: add_graph(folder, name, data))


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(2**10))
        except OSError:
            pass


def published_names(published: list[int]) -> list[str]:
    return [f"graph_{number}" for number in range(len(published))]


def leftovers(disk: Path) -> list[str]:
    return [path.name for path in disk.rglob(".staged*")]


def read_only(disk: Path) -> dict[str, object]:
    folder = small_set(disk / "set")
    write_bundle(folder, disk / "set.tar")
    before = contents(disk)
    mount("-o", "remount,ro", str(disk))
    found = SetFolder.prepare(disk / "set", key=KEY, num_blocks=NUM_BLOCKS)
    refusals = {
        refusal(lambda: add_graph(found, "late", b"late")),
        refusal(lambda: found.publish_file("plan.json", b"new")),
        refusal(lambda: found.fail("late", "error", key={}, seconds=0)),
        refusal(lambda: found.record({})),
        refusal(lambda: found.claim("late")),
        refusal(lambda: begin(disk / "other")),
        refusal(lambda: read_bundle(disk / "set.tar", disk / "unpacked")),
        refusal(lambda: write_bundle(found, disk / "set.tar")),
    }
    return {
        "refusals": sorted({text.rsplit(": ", 1)[-1] for text in refusals}),
        "is_as_before": contents(disk) == before,
        "problems": found.verify(),
        "num_read": sum(found.read(name) == data for name, data in GRAPHS.items()),
    }


def main() -> None:
    disk = Path(sys.argv[1])
    mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", str(disk))
    print(json.dumps({"full": full, "read_only": read_only}[sys.argv[2]](disk)))


if __name__ == "__main__":
    main()
