"""Which line of our code a node of a graph, or an error, comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from traceback import FrameSummary, extract_tb
from types import TracebackType

import torch

ROOT = Path(__file__).resolve().parents[2]
"""Of the package: lines are named from here."""
TORCH = Path(torch.__file__).resolve().parent
FRAME = re.compile(r'File "([^"]+)", line (\d+)')


def line_of_text(stack_trace: str | None) -> str:
    """Return ``file:line`` of the innermost line of ours in a stack trace as text."""
    return _innermost((path, int(line)) for path, line in FRAME.findall(stack_trace or ""))


def line_of_stack(frames: Sequence[FrameSummary] | None) -> str:
    """Return ``file:line`` of the innermost line of ours among frames, outermost first."""
    return _innermost((frame.filename, frame.lineno or 0) for frame in frames or ())


def line_of_trace(trace: TracebackType | None) -> str:
    """Return ``file:line`` of the innermost line of ours that an error passed."""
    return line_of_stack(extract_tb(trace))


def _innermost(frames: Iterable[tuple[str, int]]) -> str:
    """Return the last line of the package, or of other code than torch's where it has none."""
    ours, others = "", ""
    for name, line in frames:
        path = Path(name).resolve()
        if path.is_relative_to(ROOT):
            ours = f"{path.relative_to(ROOT).as_posix()}:{line}"
        elif not path.is_relative_to(TORCH):
            others = f"{path.name}:{line}"
    return ours or others
