"""Exit statuses, and how what went wrong is said: one plain line, no traceback."""

from __future__ import annotations

import errno
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

import click

SOME_FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130

REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)

EXIT_STATUSES = """\b
Exit status:
  0    all went well
  1    a request or graph failed, the others are done; something is damaged or would not run here
  2    a mistake in the configuration, the arguments or a file
  130  interrupted; results that were finished are kept
"""


class UserMistake(click.ClickException):
    """Something that only the user can put right; shown as one line."""

    exit_code = USER_MISTAKE

    def __init__(self, message: str) -> None:
        """Join the lines of a message: file contents that it quotes may bring some."""
        super().__init__(" ".join(message.split()))


@contextmanager
def user_file(path: Path) -> Iterator[None]:
    """Turn what goes wrong with a file that the user named into a UserMistake."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UserMistake(f"{path}: {error.strerror or error}") from error


@contextmanager
def user_stdout() -> Iterator[None]:
    """Turn what goes wrong with writing to stdout, a full disk say, into a UserMistake.

    An error that names a file, or that no write gives, is not of stdout and stays as it is.
    """
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, UserMistake) as error:
        _drop_what_stdout_refuses()
        if isinstance(error, UserMistake) or error.filename or error.errno not in REFUSED_WRITES:
            raise
        raise UserMistake(f"stdout: {error.strerror}") from error


def _drop_what_stdout_refuses() -> None:
    """Keep python from writing it once more at exit, which ends in a status of its own."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Show each warning once, as a plain line on stderr."""
    shown: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = f"Warning: {' '.join(str(message).split())}"
        if text not in shown:
            shown.add(text)
            click.echo(text, err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
