"""Interrupts (SIGINT) that wait until it is safe to stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def held_interrupts() -> Iterator[list[int]]:
    """Let an interrupt wait for the end of the block; what is yielded is empty until one came.

    Only the main thread is ever interrupted, so in any other there is nothing to hold. Blocks may
    be nested: the interrupt takes effect behind the outermost one.
    """
    held: list[int] = []
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGINT)
    if not is_main or not callable(handler):
        yield held
        return
    signal.signal(signal.SIGINT, lambda number, _: held.append(number))
    try:
        yield held
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            handler(held[0], None)
