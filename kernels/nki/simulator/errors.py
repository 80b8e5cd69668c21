"""The one error of the simulator: which instruction, what is wrong, and at which kernel line."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

FOLDER = os.path.join(os.path.dirname(sys._getframe(0).f_code.co_filename), "")


class SimulationError(Exception):
    """A kernel broke a rule of the hardware or of the API.

    The message reads ``file:line: instruction: problem``; the three parts are attributes too.
    """

    def __init__(self, where: str, instruction: str, problem: str) -> None:
        """Join the parts into one line."""
        super().__init__(f"{where}: {instruction}: {problem}")
        self.where = where
        self.instruction = instruction
        self.problem = problem


def call_site() -> tuple[str, str]:
    """Return the API function that kernel code is in, and that kernel code's ``file:line``.

    Kernel code is the innermost frame outside this folder; the frame that it called names the
    instruction, so no instruction has to be told its own name.
    """
    frame = sys._getframe(1)
    name = frame.f_code.co_name
    while frame.f_back is not None and frame.f_code.co_filename.startswith(FOLDER):
        name = frame.f_code.co_name
        frame = frame.f_back
    return name, f"{frame.f_code.co_filename}:{frame.f_lineno}"


def fail(problem: str) -> NoReturn:
    """Raise what is wrong with the instruction that the kernel is in.

    Raises:
        SimulationError: always.
    """
    name, where = call_site()
    raise SimulationError(where, name, problem) from None
