"""Where results go: JSON lines as they finish, or texts in the order of the prompts."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, TextIO

import click

from ..outputs import Completion
from ..sampled_token import TokenLogprobs
from .failures import UserMistake, user_file
from .output_paths import STDOUT

NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""How a file system says that it has no locks."""


ASKED_FOR = ("logprobs", "prompt_logprobs", "completions")
"""Fields that a record has only where the request asked for them."""


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one prompt; the fields of an output record, in its order.

    Attributes:
        text: of the first sample, like ``token_ids``, ``finish_reason`` and ``logprobs``.
        error: of the prompt, or of any of its samples.
        logprobs: one per token.
        prompt_logprobs: one per token of the prompt behind the first.
        completions: all samples, where the request asked for several.
    """

    index: int
    prompt: str | None
    text: str | None
    token_ids: tuple[int, ...]
    finish_reason: str
    error: str | None
    logprobs: tuple[TokenLogprobs, ...] | None = None
    prompt_logprobs: tuple[TokenLogprobs, ...] | None = None
    completions: tuple[Completion, ...] | None = None

    @property
    def num_new_tokens(self) -> int:
        """Generated tokens of all samples."""
        if self.completions is None:
            return len(self.token_ids)
        return sum(len(one.token_ids) for one in self.completions)

    def to_json(self) -> str:
        """Return the record as one line of strict JSON."""
        record = asdict(self)
        for name in ASKED_FOR:
            if record[name] is None:
                del record[name]
        return json.dumps(record, ensure_ascii=False, allow_nan=False)


class ResultWriter(Protocol):
    """Takes results in the order in which they finish."""

    def write(self, result: Result) -> None:
        """Take one result."""


class JsonLines:
    """One JSON object per line; a result that was written is not lost."""

    def __init__(self, file: TextIO, path: Path, *, replaces: bool) -> None:
        """Write to an open file; ``replaces`` drops what it holds once there is a result."""
        self._file = file
        self._path = path
        self._replaces = replaces

    def write(self, result: Result) -> None:
        """Write one line and flush it."""
        with user_file(self._path):
            if self._replaces:
                # Not earlier: a run that cannot start costs no older results.
                self._file.truncate(0)
                self._replaces = False
            self._file.write(result.to_json() + "\n")
            self._file.flush()


class Texts:
    """Prompts and texts for a reader, in the order of the prompts."""

    def __init__(self) -> None:
        """Begin with the first prompt."""
        self._held: dict[int, Result] = {}
        self._next = 0

    def write(self, result: Result) -> None:
        """Print the result and those held back for it, or hold it back for an earlier one."""
        self._held[result.index] = result
        while self._next in self._held:
            self._print(self._held.pop(self._next))
            self._next += 1

    def finish(self) -> None:
        """Print results whose earlier neighbours never finished."""
        for index in sorted(self._held):
            self._print(self._held.pop(index))

    def _print(self, result: Result) -> None:
        title = "" if result.prompt is None else f" {result.prompt}"
        click.echo(f"[{result.index}]{title}\n{_readable(result)}\n")


@contextmanager
def open_results(path: Path | None, inputs: Mapping[str, Path]) -> Iterator[ResultWriter]:
    """Yield the writer for ``-o path``: "-" is stdout, None prints texts.

    Args:
        path: where results go.
        inputs: by what they hold, files that are never written to; not all need exist.

    Raises:
        UserMistake: the file cannot be written, is one of the inputs, or another process
            writes to it; or stdout is closed.
    """
    if path is None:
        texts = Texts()
        try:
            yield texts
        finally:
            texts.finish()
    elif str(path) == STDOUT:
        if sys.stdout is None:
            raise UserMistake("-o -: stdout is closed")
        yield JsonLines(sys.stdout, Path("stdout"), replaces=False)
    else:
        file = open_to_append(path, inputs)
        try:
            yield JsonLines(file, path, replaces=is_regular(file))
        finally:
            with user_file(path):  # closing writes again what a full disk refused
                file.close()


def open_to_append(path: Path, inputs: Mapping[str, Path]) -> TextIO:
    """Open a file that is written to, locked where it is one that keeps what is written.

    Raises:
        UserMistake: as for ``open_results``.
    """
    with user_file(path):
        for name, source in inputs.items():
            if path.exists() and os.path.exists(source) and path.samefile(source):
                raise UserMistake(f"{path}: is the file of the {name}; write to another one")
        file = path.open("a", encoding="utf-8", newline="\n")
        try:
            if is_regular(file):
                _lock(file)
        except BlockingIOError:
            file.close()
            raise UserMistake(f"{path}: another process is writing to it") from None
    return file


def _lock(file: TextIO) -> None:
    """Lock a file until it is closed, where its file system has locks.

    Raises:
        BlockingIOError: another process has locked it.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise


def is_regular(file: TextIO) -> bool:
    """Tell files that keep what is written from devices, pipes and terminals."""
    return stat.S_ISREG(os.fstat(file.fileno()).st_mode)


def _readable(result: Result) -> str:
    """Return the answer, or all of them, a line each."""
    return "\n".join(_answer(one) for one in result.completions or (result,))


def _answer(one: Result | Completion) -> str:
    if one.error is not None:
        return f"failed: {one.error}"
    return " ".join(map(str, one.token_ids)) if one.text is None else one.text.strip()
