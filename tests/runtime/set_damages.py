"""Damages of the files of a compiled set: what a disk, a copy or a hand may do to them."""

from __future__ import annotations

import random

NUM_DAMAGES = 200


def damages(files: dict[str, bytes]) -> list[tuple[str, bytes]]:
    """Return flips of one byte and truncations, as many of one file as of another."""
    draws = random.Random(5)
    paths = sorted(path for path, data in files.items() if data)
    found = []
    for number in range(NUM_DAMAGES):
        path = paths[number % len(paths)]
        data = files[path]
        index = draws.randrange(len(data))
        flipped = data[:index] + bytes([data[index] ^ draws.randrange(1, 256)]) + data[index + 1 :]
        found.append((path, data[:index] if draws.random() < 0.4 else flipped))
    return found
