"""Processes that the program forks while a set is written: they keep no lock of it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from noria.runtime.compiled_set.claims import CLAIM, take_claim
from noria.runtime.compiled_set.locking import LOCK, quiet, write_lock

NAME = "decode_s8_c256"


@contextmanager
def forked() -> Iterator[None]:
    """Let a process that was forked now, with all that is open, live until the block ends."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)
        os._exit(0)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)
        os.waitpid(child, 0)


def claimed(folder: Path) -> ExitStack:
    """Return a claim whose file is left, as where it cannot be removed."""
    release = take_claim(folder, NAME)
    assert release is not None
    (folder / f"{CLAIM}{NAME}").rename(folder / "aside")
    stack = ExitStack()
    stack.callback(release)
    return stack


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("hold", "file"),
    [(write_lock, LOCK), (quiet, LOCK), (claimed, "aside")],
    ids=["writer", "reader", "claim"],
)
def test_a_lock_ends_with_its_block_though_a_forked_process_lives(
    tmp_path: Path, hold: Callable[[Path], ExitStack], file: str
) -> None:
    (tmp_path / LOCK).touch()
    with ExitStack() as stack:
        with hold(tmp_path):
            stack.enter_context(forked())

        with (tmp_path / file).open() as other:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
