"""The ``noria`` command, which stops at a fault point; see ``set_faults``.

NORIA_FAULT_POINT=file.staged:4 python command_at_point.py compile CONFIG -o DIR
"""

from __future__ import annotations

import signal

import set_faults

from noria.runtime.cli import main

if __name__ == "__main__":
    set_faults.install(signal.SIGSTOP)
    main()
