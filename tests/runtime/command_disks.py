"""What ``noria compile`` meets on a full and on a read-only disk; prints it as JSON.

    unshare --mount --map-root-user python command_disks.py FOLDER full full_of_more read_only

Each kind has a disk of its own, a small tmpfs in FOLDER, in a mount namespace of this process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner, Result
from command_forks import FOUR_GRAPHS, work_in_threads
from sessions import wait_until_ended
from set_disks import fill, mount
from small_sets import contents, files_of

from noria.runtime.cli import main as noria
from noria.runtime.compiled_set.folder import SetFolder
from noria.runtime.compiled_set.locking import LOCK
from noria.runtime.compiled_set.manifest import MANIFEST

PAGE = 2**12
SIZE = 2**20
PROGRESS = ("compile: ", "graphs: ")
MORE = {"num_seqs_buckets": [1, 2]}
"""Of the settings with two more graphs."""


class Disk:
    """The disk, and configurations and prompts beside it."""

    def __init__(self, path: Path) -> None:
        self.path, self.set, self.ballast = path, path / "set", path / "ballast"
        self.few, self.more = path.with_name("few.yaml"), path.with_name("more.yaml")
        self.prompts = path.with_name("prompts.jsonl")
        self.few.write_text(yaml.safe_dump(dict(FOUR_GRAPHS)))
        self.more.write_text(yaml.safe_dump({**FOUR_GRAPHS, **MORE}))
        self.prompts.write_text('{"prompt_token_ids": [1, 2]}\n{"prompt_token_ids": [3]}\n')
        mount("-t", "tmpfs", "-o", f"size={SIZE}", "none", str(path))

    def compile(self, config: Path, folder: Path | None = None) -> Result:
        return run("compile", config, "-o", folder or self.set)

    def generate(self, config: Path) -> Result:
        """Generate with the set's graphs and no others."""
        options = ("--compiled", self.set, "--require-compiled")
        return run("generate", config, "--prompts", self.prompts, *options)

    def text(self) -> str:
        """Return what the set's graphs generate."""
        result = self.generate(self.few)
        assert result.exit_code == 0, result.output
        return result.stdout

    def leave(self, num_pages: int) -> None:
        """Fill the disk but for some pages."""
        fill(self.ballast)
        with self.ballast.open("r+b") as file:
            file.truncate(file.seek(0, 2) // PAGE * PAGE - num_pages * PAGE)

    def free(self) -> None:
        self.ballast.unlink()


def run(*arguments: object) -> Result:
    return CliRunner().invoke(noria, [str(one) for one in arguments])


def refusal(result: Result) -> dict[str, object]:
    """Return the exit status of a command that was refused, and its lines that are no progress."""
    lines = [line for line in result.stderr.splitlines() if not line.startswith(PROGRESS)]
    return {
        "status": result.exit_code,
        "lines": [line.replace(": ", " ", 1).rpartition(": ")[2] for line in lines],
        "begins": [line.partition("/")[0] for line in lines],
        "stdout": result.stdout,
    }


def problems(folder: Path) -> list[str]:
    """Return what is damaged or left over; there may be no set."""
    if not (folder / MANIFEST).exists():
        return [path.name for path in folder.rglob("*") if path.name != LOCK]
    return SetFolder.open(folder).verify()


def sizes() -> Iterator[int]:
    """Yield pages that are left: before the native library has room, then from there on."""
    yield from (0, 1, 2, 3, 20)
    yield from range(60, 200)


def full(disk: Disk) -> list[dict[str, Any]]:
    """Compile where ever more pages are left, until there is room for all."""
    met = []
    for num_pages in sizes():
        disk.leave(num_pages)
        result = disk.compile(disk.few)
        found = {"num_pages": num_pages, "result": refusal(result), "problems": problems(disk.set)}
        found["graphs"] = sorted(path.stem for path in disk.set.glob("graphs/*"))
        if result.exit_code:
            found["generate"] = refusal(disk.generate(disk.few))
        disk.free()
        met.append({**found, **after(disk, disk.few)})
        shutil.rmtree(disk.set)
        if not result.exit_code:
            break
    return met


def after(disk: Disk, config: Path) -> dict[str, object]:
    """Return how the next run ends, and what verify says then."""
    statuses = [disk.compile(config).exit_code, run("verify", disk.set).exit_code]
    return {"after": statuses, "contents": digest(disk.set)}


def digest(folder: Path) -> dict[str, int]:
    return {name: hash(data) for name, data in files_of(folder).items() if name != MANIFEST}


def full_of_more(disk: Disk) -> list[dict[str, Any]]:
    """Add graphs to a set where ever more pages are left, until there is room for all."""
    met = []
    disk.compile(disk.few)
    text = disk.text()
    kept = shutil.copytree(disk.set, disk.path.with_name("kept"))
    for num_pages in range(40):
        disk.leave(num_pages)
        there = disk.compile(disk.few)
        result = disk.compile(disk.more)
        found = {"num_pages": num_pages, "result": refusal(result), "problems": problems(disk.set)}
        found["there"] = there.exit_code
        found["same"] = disk.text() == text
        disk.free()
        met.append({**found, **after(disk, disk.more)})
        shutil.rmtree(disk.set)
        shutil.copytree(kept, disk.set)
        if not result.exit_code:
            break
    return met


def read_only(disk: Disk) -> dict[str, object]:
    disk.compile(disk.few)
    text, before = disk.text(), contents(disk.path)
    mount("-o", "remount,ro", str(disk.path))
    results = [
        disk.compile(disk.more),
        disk.compile(disk.few, disk.path / "other"),
        disk.generate(disk.more),
    ]
    found = {
        "results": [refusal(result) for result in results],
        "again": disk.compile(disk.few).exit_code,
        "verify": run("verify", disk.set).exit_code,
        "same": disk.text() == text,
        "is_as_before": contents(disk.path) == before,
    }
    mount("-o", "remount,rw", str(disk.path))
    return {**found, **after(disk, disk.more), "last": disk.generate(disk.more).exit_code}


def with_processes(disk: Disk) -> dict[str, object]:
    """Compile with worker processes where there is room for one graph."""
    disk.leave(73)
    command = [sys.executable, "-m", "noria.runtime", "compile", str(disk.few), "-o", str(disk.set)]
    with subprocess.Popen(command, start_new_session=True, stderr=subprocess.PIPE) as process:
        _, stderr = process.communicate(timeout=600)
    wait_until_ended(process.pid)
    lines = stderr.decode().splitlines()
    return {"status": process.returncode, "last": lines[-1], "problems": problems(disk.set)}


KINDS = {
    "full": full,
    "full_of_more": full_of_more,
    "read_only": read_only,
    "with_processes": with_processes,
}


def main(folder: Path, kinds: list[str]) -> None:
    met = {}
    for kind in kinds:
        path = folder / kind / "disk"
        path.mkdir(parents=True)
        met[kind] = KINDS[kind](Disk(path))
    print(json.dumps(met))


if __name__ == "__main__":
    work_in_threads()
    main(Path(sys.argv[1]), sys.argv[2:])
