"""Files of traces: opened here, read by bucketing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..bucketing.traces.counters import Counters, read_counters
from ..bucketing.traces.readers import QUOTED_VERSION_KEY, read_trace
from ..bucketing.traces.text import TraceText
from ..bucketing.traces.trace import Trace, TraceError
from .errors import NoriaError
from .text_files import open_text

HEAD_BYTES = 4096
"""Of a file of counters, which say in the first of them that they are some."""


def read_trace_file(path: Path) -> Trace:
    """Read a trace of any format that ``read_trace`` knows, compressed or not.

    Raises:
        NoriaError: it cannot be read or is no trace.
    """
    with _trace_file(path) as stream:
        return read_trace(stream, str(path))


def read_counters_file(path: Path) -> Counters:
    """Read counters that a run wrote, compressed or not.

    Raises:
        NoriaError: they cannot be read or are none.
    """
    with _trace_file(path) as stream:
        return read_counters(TraceText.read(stream, str(path)))


def holds_counters(path: Path) -> bool:
    """Tell whether a file looks like counters of a run.

    Raises:
        NoriaError: it cannot be read.
    """
    with _trace_file(path) as stream:
        return QUOTED_VERSION_KEY in stream.read(HEAD_BYTES)


@contextmanager
def _trace_file(path: Path) -> Iterator[IO[bytes]]:
    try:
        with open_text(path) as stream:
            yield stream
    except OSError as error:
        raise NoriaError(f"{path}: {error.strerror or error}") from error
    except TraceError as error:
        raise NoriaError(str(error)) from error
