"""The ``noria`` command, which stops at a fault point; see ``set_faults``.

NORIA_FAULT_POINT=file.staged:4 python command_at_point.py compile CONFIG -o DIR
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

import set_faults

from noria.runtime.cli import main


def stopped_at(
    point: str, arguments: Sequence[object], errors: int = subprocess.DEVNULL
) -> subprocess.Popen[str]:
    """For the test: start the command in a session of its own, and return when it has stopped."""
    process = subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, set_faults.VARIABLE: point},
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=errors,
        text=True,
    )
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status), f"it has ended before {point}"
    return process


if __name__ == "__main__":
    set_faults.install(signal.SIGSTOP)
    main()
