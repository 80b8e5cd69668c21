"""The built library: addresses of its kernels, and running lists of commands through it."""

from __future__ import annotations

import ctypes
import json
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .build import BUILT_FROM, INSTALL, BuildError, build, detect_instruction_set, find_compiler

Argument = int | float | Tensor | None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next rows of a command's result, by its next tasks: how many of each.

    ``end_arg`` is the place of the argument that tells from which row on nothing is needed; None:
    there is none, and a chunk is computed whole.
    """

    num_rows: int
    num_tasks: int
    end_arg: int | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One command: a kernel, how many tasks it has, and its arguments in order.

    Tensors are passed by address, None as a null pointer; sizes and strides count elements.
    ``chunk`` is there where tasks compute the rows of the result in order.
    """

    kernel: str
    num_tasks: int
    args: tuple[Argument, ...]
    chunk: Chunk | None = None

    def for_rows(self, num_rows: int) -> Call:
        """Return the call that computes the first rows only, in the same way, where it can."""
        if self.chunk is None:
            return self
        num_tasks = -(-num_rows // self.chunk.num_rows) * self.chunk.num_tasks
        args = list(self.args)
        if self.chunk.end_arg is not None:
            args[self.chunk.end_arg] = num_rows
        return replace(self, num_tasks=min(self.num_tasks, num_tasks), args=tuple(args))


@dataclass(frozen=True, slots=True)
class CommandList:
    """Commands in the layout of ``csrc/command.h``, and the tensors that they point into."""

    commands: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    args: np.ndarray[tuple[int, ...], np.dtype[np.int64]]
    tensors: list[Tensor] = field(repr=False)


class Library:
    """Kernels of one built library."""

    def __init__(self, path: str) -> None:
        """Load the library from a file."""
        self.path = path
        self._library = ctypes.CDLL(path)
        self._run = self._library.noria_run
        self._run.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p]
        self._run.restype = None
        describe = getattr(self._library, BUILT_FROM)
        describe.restype = ctypes.c_char_p
        self.built_from: Mapping[str, str] = json.loads(describe())
        """The compiler's version, its flags and the digest of the sources."""

    def encode(self, calls: Sequence[Call]) -> CommandList:
        """Lay out calls for ``run``; the result keeps their tensors alive."""
        args = np.array([_encode(arg) for call in calls for arg in call.args], dtype=np.int64)
        commands = np.zeros((len(calls), 3), dtype=np.int64)
        offset = 0
        for row, call in zip(commands, calls, strict=True):
            row[:] = self._address(call.kernel), call.num_tasks, args.ctypes.data + 8 * offset
            offset += len(call.args)
        tensors = [arg for call in calls for arg in call.args if isinstance(arg, Tensor)]
        return CommandList(commands, args, tensors)

    def run(self, commands: CommandList) -> None:
        """Run the commands in order, each shared by all threads that torch uses."""
        table = commands.commands
        self._run(table.ctypes.data, table.shape[0], torch.get_num_threads(), None)

    def time(self, commands: CommandList) -> list[float]:
        """Run the commands in order; return the seconds of each."""
        table = commands.commands
        ends = np.zeros(len(table) + 1, dtype=np.int64)
        ends[0] = time.monotonic_ns()  # the steady clock of C++
        threads = torch.get_num_threads()
        self._run(table.ctypes.data, len(table), threads, ends[1:].ctypes.data)
        return [float(seconds) for seconds in np.diff(ends) / 1e9]

    def call(self, calls: Sequence[Call]) -> None:
        """Encode and run once."""
        self.run(self.encode(calls))

    def _address(self, kernel: str) -> int:
        return ctypes.cast(getattr(self._library, kernel), ctypes.c_void_p).value or 0


def _encode(arg: Argument) -> int:
    if arg is None:
        return 0
    if isinstance(arg, Tensor):
        return arg.data_ptr()
    if isinstance(arg, float):
        return int(struct.unpack("q", struct.pack("d", arg))[0])
    return arg


def load_library(compiler: str | None = None, built: Path | None = None) -> Library:
    """Load the library; build it first (at most once per machine) where it is not there.

    Args:
        compiler: its path; None looks on PATH.
        built: a library that was built for this machine's instruction set.

    Raises:
        BuildError: there is no C++ compiler, it failed, or its result cannot be kept or loaded.
    """
    path = built or _build(compiler)
    try:
        return Library(str(path))
    except OSError as error:  # no library of OpenMP, or a cache in which nothing may be executed
        raise BuildError(f"the built kernels cannot be loaded: {error}; {INSTALL}") from error


def _build(compiler: str | None) -> Path:
    compiler = compiler or find_compiler()
    if compiler is None:
        raise BuildError(f"no C++ compiler (g++ or c++) is on PATH; {INSTALL}")
    return build(compiler, detect_instruction_set())
