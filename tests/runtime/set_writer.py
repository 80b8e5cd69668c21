"""A process that writes a set of many graphs, to be killed or to meet others of its kind.

    python set_writer.py write PATH     bring the set up to the newest version, then end
    python set_writer.py endless PATH   change it from version to version for ever
    python set_writer.py rounds HOLD    for each path on stdin, compile the graphs that are missing

``rounds`` prints what it compiled; with HOLD 1 it holds the lock from the look-up to the end.
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import set_faults
from small_sets import ERROR, add_graph, begin, graph_key

NEWEST = 3
NAMES = tuple(f"graph_{index}" for index in range(6))
FAILED = "fails_at_first"


def graph_bytes(name: str, version: int) -> bytes:
    return f"{name} of version {version}\n".encode() * (50 + version)


def write(path: Path, version: int) -> None:
    """Bring the set to a version: each graph has it in its key, and so has a file."""
    folder = begin(path)
    folder.publish_file("plan.json", f"plan {version}".encode())
    for name in NAMES:
        add_graph(folder, name, graph_bytes(name, version), version)
    if version < NEWEST:
        folder.fail(FAILED, ERROR, key=graph_key(FAILED, version), seconds=1)
    else:
        add_graph(folder, FAILED, graph_bytes(FAILED, version), version)


def compile_missing(path: Path, *, holds_lock: bool) -> int:
    """Compile what is missing, slowly and to bytes of this process; return how many that were."""
    folder = begin(path)
    num_compiled = 0
    with folder.locked() if holds_lock else nullcontext():
        for name in NAMES:
            if not folder.has(name, graph_key(name)):
                time.sleep(0.002)
                num_compiled += 1
                add_graph(folder, name, f"{name} by {os.getpid()}".encode() * 99)
    return num_compiled


def main() -> None:
    set_faults.install()
    command, argument = sys.argv[1:]
    if command == "write":
        write(Path(argument), NEWEST)
    elif command == "endless":
        print("ready", flush=True)
        for number in itertools.count():
            write(Path(argument), 1 + number % NEWEST)
    else:
        print("ready", flush=True)
        for line in sys.stdin:
            print(compile_missing(Path(line.strip()), holds_lock=argument == "1"), flush=True)


if __name__ == "__main__":
    main()
