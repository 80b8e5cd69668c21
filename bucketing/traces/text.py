"""The text that a trace is read from: its lines, their numbers, and errors that name both."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from .trace import TraceError

BOM = b"\xef\xbb\xbf"
BLANK = b" \t\r\n"
MAX_SHOWN = 60


class ByteStream(Protocol):
    """What a trace is read from: an open file, say, or ``io.BytesIO``."""

    def read(self) -> bytes:
        """Return all bytes up to the end."""
        ...


@dataclass(frozen=True, slots=True)
class TraceText:
    """A text with the name of where it comes from.

    Attributes:
        source: name for people, which begins every error.
        data: UTF-8 without zero bytes, byte-order mark and blank end; blank lines may begin it.
        sha256: of the bytes as they came.
    """

    source: str
    data: bytes
    sha256: str

    @classmethod
    def read(cls, stream: ByteStream, source: str) -> TraceText:
        """Read all of a stream.

        Raises:
            TraceError: it is empty, no text, or has no line feeds between its lines.
        """
        raw = stream.read()
        data = raw.removeprefix(BOM).rstrip(BLANK)
        text = cls(source, data, hashlib.sha256(raw).hexdigest())
        if not data:
            raise text.error("is empty; a trace has at least one request")
        text._check_is_text()
        if b"\n" not in data and b"\r" in data:
            raise text.error("ends its lines with carriage returns alone; must be line feeds", 1)
        return text

    def error(self, problem: str, line: int | None = None) -> TraceError:
        """Return an error about a line, counted from 1, or about the whole."""
        place = self.source if line is None else f"{self.source}, line {line}"
        return TraceError(f"{place}: {problem}")

    def line_at(self, offset: int) -> int:
        """Return the number of the line that holds a byte."""
        return self.data.count(b"\n", 0, offset) + 1

    @property
    def start(self) -> int:
        """Offset of the first line that is not blank."""
        blank = len(self.data) - len(self.data.lstrip(BLANK))
        return self.data.rfind(b"\n", 0, blank) + 1

    @property
    def first_line(self) -> bytes:
        """The first line that is not blank, without blanks around it."""
        return self.data[self.start :].split(b"\n", 1)[0].strip(BLANK)

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield lines that are not blank, with their numbers, without blanks around them."""
        for number, line in enumerate(self.data.split(b"\n"), start=1):
            stripped = line.strip(BLANK)
            if stripped:
                yield number, stripped

    def _check_is_text(self) -> None:
        zero = self.data.find(b"\0")
        if zero >= 0:
            raise self.error("holds a zero byte, so it is no text", self.line_at(zero))
        if self.data.isascii():
            return
        try:
            self.data.decode("utf-8")
        except UnicodeDecodeError as error:
            line = self.line_at(error.start)
            raise self.error("is no UTF-8 text", line) from None


def shown(value: bytes | object) -> str:
    """Write a value into an error: in ASCII, on one line, and shortened.

    >>> shown(b"12.5"), shown(None), shown(b"x" * 100)[-6:]
    ("'12.5'", 'None', 'xxx...')
    """
    try:
        text = ascii(value.decode("utf-8", "replace") if isinstance(value, bytes) else value)
    except RecursionError:
        return "..."
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."
