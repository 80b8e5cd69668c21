"""Faults for kill tests of compiled sets: a process ends at a named point as by ``kill -9``.

A test runs Python with ``NORIA_FAULT_POINT=name`` or ``name:n`` for the n-th time that the point is
reached, and calls ``install`` before anything is written.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from noria.runtime.compiled_set import folder, leftovers, manifest_file, staging

VARIABLE = "NORIA_FAULT_POINT"

MODULES = (folder, leftovers, manifest_file, staging)

FAULT_POINTS = (
    "folder.made",
    "lock.held",
    *(
        f"{kind}.{where}"
        for kind in ("file", "manifest", "unlisting")
        for where in (
            "before_writing",
            "opened",
            "half_written",
            "written",
            "staged",
            "before_rename",
            "renamed",
            "durable",
        )
    ),
    "leftover.removed",
)
"""All that a writer of a set can reach."""


def install(signal_number: int = signal.SIGKILL) -> Counter[str]:
    """Put the fault of the environment in place; returns the points reached, counted on.

    SIGSTOP in place of SIGKILL lets the test look around before it kills the process there.
    """
    reached: Counter[str] = Counter()
    name, _, count = os.environ.get(VARIABLE, "").partition(":")

    def fault_point(point: str) -> None:
        reached[point] += 1
        if point == name and reached[point] == int(count or 1):
            os.kill(os.getpid(), signal_number)

    for module in MODULES:
        vars(module)["fault_point"] = fault_point
    return reached
